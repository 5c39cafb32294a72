#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/blocks/linear.h"
#include "model/blocks/moe/moe.h"
#include "model/config.h"
#include "model/front/per_layer_inputs.h"
#include "model/front/token_front.h"
#include "model/norm.h"
#include "model/parameters.h"
#include "model/side_boundary.h"
#include "model/tail/language_tail.h"

namespace nemocube {

/// A model's memory of the sequences that it is decoding, one entry for each of its blocks.
struct DecodeState {
  std::vector<std::unique_ptr<MixerState>> blocks;
};
/// The records of a chunk's blocks about one training microbatch, one
/// entry for each block, null without a record.
using BlockRecords = std::vector<std::unique_ptr<MixerRecord>>;
/// The records of the MoE blocks, in their order.
std::vector<MoeRecord*> moe_records(const BlockRecords& records);

/// Called around the work of each block, with its number in the whole model. Blocks of multi-token
/// prediction have no calls. Sharded data parallelism gathers and releases weights here and reduces
/// gradients. Backward hooks are not called while nothing is recorded, and where neither the block nor
/// anything before it is trained.
///
/// A block's own parameters are its mixer's. The norms belong to no block: the residual sum of one block and
/// the norm of the next are one operation.
class BlockHooks {
 public:
  virtual ~BlockHooks() = default;
  virtual void before_forward(std::int64_t block) = 0;
  virtual void after_forward(std::int64_t block) = 0;
  /// Under activation checkpointing the replay lies between both backward hooks. It calls no forward hooks.
  virtual void before_backward(std::int64_t block) = 0;
  virtual void after_backward(std::int64_t block) = 0;
  /// The block's own parameters have their gradients of this pass; later than after_backward where weight
  /// work is deferred (Tape).
  virtual void gradients_written(std::int64_t block) = 0;
};

/// The input of a forward pass.
struct ForwardInput {
  Tensor ids;    ///< [T] i64, where the chunk has the embeddings
  Var residual;  ///< other chunks: the result of the chunk before
  const Sequences& sequences;
  /// The tokens continue the sequences of the state; positions of `sequences` count in these sequences.
  DecodeState* state = nullptr;
  BlockRecords* records = nullptr;  ///< make_records() of the chunk for the microbatch, in training
  std::size_t chunk = 0;            ///< of ModelPart::chunks
};

/// The input of multi-token prediction.
struct MtpInput {
  std::span<const Tensor> ids;  ///< of each depth k = 1, 2, ...: [T] i64, rolled() by k (model/mtp/rolled.h)
  const Sequences& sequences;   ///< of the hidden states
  BlockRecords* records = nullptr;  ///< make_mtp_records() for the microbatch, in training
};

/// A stack of blocks on one device: a front, through which rows enter (embeddings), blocks x <- x +
/// mixer(norm(x)), and a tail, through which rows leave (final norm, head, loss). A block may also have a
/// norm behind its mixer (Residual), and may read rows of parts before it beside the residual stream
/// (SideRows). Source: equations in docs/.
class Stack {
 public:
  /// Parameters are uninitialised: load them or call initialise().
  Stack(const ModelSetup& setup, DType dtype, Device device, ModelPart part = {});
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  /// The blocks of a chunk, in order. Returns the hidden states after the final norm [T, hidden], or, where
  /// the chunk does not end with the head, the residual sum [T, hidden]; where side rows pass the end of the
  /// chunk, one flat tensor of all that passes (boundary_behind()). Writes no gradient: a dropped tape leaves
  /// nothing behind. Ids must be in the vocabulary: the caller checks them.
  Var forward(Context& ctx, const ForwardInput& input);
  /// The same for the whole model: token ids i64 [T], divided into `sequences`.
  Var hidden(Context& ctx, const Tensor& ids, const Sequences& sequences, DecodeState* state = nullptr) {
    return forward(ctx, {.ids = ids, .residual = {}, .sequences = sequences, .state = state});
  }
  /// hidden [R, hidden] -> logits [R, tokens of lm_head] in f32 (f64 for f64). Not differentiable; see
  /// loss().
  Tensor logits(const Tensor& hidden) const;
  /// Sum of the cross-entropy over labelled rows (label -100: not labelled), [] in f32 (f64 for f64). While
  /// recording, gradients are of grad_scale times the sum; backward must start from 1. Full logits never
  /// exist. The gradient of lm_head is written at once, so the loss is the first work of backward. Where the
  /// vocabulary is cut, all ranks get the same loss; the caller adds their gradients of `hidden`.
  ///
  /// `hidden` are rows as forward() returns them, `labels` are of all rows
  /// after the transform at head_name() / "input". `token_losses`, where not null, is set to -log p(label)
  /// of each of labels.rows, [labels.count()] f64, without a z loss (ops/linear_cross_entropy).
  Var loss(Context& ctx, const Var& hidden, const Labels& labels, const Sequences& sequences,
           const GradScale& grad_scale, Tensor* token_losses = nullptr);

  /// Multi-token prediction, where the part has the head: the hidden states h^k [T, hidden] of each depth of
  /// ModelChoices::mtp, from `hidden`, which forward() has returned. loss() computes their losses, with
  /// labels rolled() by k. Depth k computes, with e = embeddings of its ids,
  ///     f = eh_proj [enorm(e), hnorm(h^(k-1))],  blocks f <- f + mixer(rmsnorm(f)),  h^k =
  ///                                                                                  final_layernorm(f)
  /// Source: docs/mtp.md.
  std::vector<Var> predict_ahead(Context& ctx, const Var& hidden, const MtpInput& input);
  /// Records of the blocks of each depth, one depth after another. Each depth
  /// of a repeated layer has its own records.
  BlockRecords make_mtp_records() const;

  DecodeState make_state(std::int64_t sequences) const;
  BlockRecords make_records(std::size_t chunk = 0) const;

  const ModelSetup& setup() const { return setup_; }
  const ModelConfig& config() const { return setup_.config; }
  const ModelChoices& choices() const { return setup_.choices; }
  DType dtype() const { return dtype_; }
  Device device() const { return parameters_.device(); }
  ParameterStore& parameters() { return parameters_; }
  const ParameterStore& parameters() const { return parameters_; }
  const ModelPart& part() const { return part_; }
  const std::vector<MoeMixer*>& moe_layers() const { return moe_layers_; }  ///< of this part
  /// The blocks of this part whose mixer is an M, in order, blocks of multi-token prediction last.
  template <class M>
  std::vector<M*> mixers() const;
  const TransformPoints& transform_points() const { return points_; }
  /// What enters a chunk: the cut before its first block.
  const SideBoundary& boundary_before(std::size_t chunk) const { return boundaries_.at(chunk).first; }
  const SideBoundary& boundary_behind(std::size_t chunk) const { return boundaries_.at(chunk).second; }
  TokenFront* front() { return front_ ? &*front_ : nullptr; }  ///< null where the part has no embeddings
  /// Null where the part does not make any.
  PerLayerInputs* per_layer_inputs() { return per_layer_inputs_ ? &*per_layer_inputs_ : nullptr; }
  LanguageTail* tail() { return tail_ ? &*tail_ : nullptr; }  ///< null where the part has no head
  const LanguageTail* tail() const { return tail_ ? &*tail_ : nullptr; }

  bool activation_checkpointing = false;  ///< keep only each mixer's input; backward computes the rest again
  /// Labelled rows whose logits exist at once. The constructor sets as many as make 16 MiB in f32, at least
  /// 256, at most 512; on CUDA as many as make 1 GiB, at least 256, at most 2048.
  std::int64_t loss_chunk_rows = 0;
  /// The tokens that enter a forward pass without state, where several devices share a microbatch's tokens.
  RowCut token_rows;
  BlockHooks* hooks = nullptr;

 private:
  struct Block {
    std::int64_t number;  // in the whole model
    const char* owner;    // of memory: "mamba block 3"
    Residual form;
    std::optional<Norm> norm;  // before the mixer
    std::optional<Norm> norm_after;
    const Parameter* scalar;               // of the residual stream behind the block; null: none
    std::vector<TensorName> reads, makes;  // of side rows
    bool trained;                          // some parameter of the mixer
    SharedWays* ways;                      // of the blocks on one norm; null: the block has a norm of its own
    bool last_on_norm;
    std::unique_ptr<Mixer> mixer;
  };
  /// State of a pass that blocks on one norm share.
  struct OnNorm {
    Var rows;  ///< that their mixers get
    Var sum;   ///< of the outputs so far, where the outputs leave together
  };
  /// A depth of multi-token prediction that has weights.
  struct MtpDepth {
    Norm embedding_norm, hidden_norm;
    std::unique_ptr<Linear> join;  // eh_proj
    std::vector<Block> blocks;
    Norm final_norm;
  };
  void add_mtp_depths();
  /// `made`: what later blocks read of the block.
  Block make_block(std::int64_t number, const char* owner, const TensorName& name, BlockKind kind,
                   std::span<const SideRows> made = {});
  /// Indices of the blocks of a chunk in blocks_.
  std::pair<std::size_t, std::size_t> blocks_of(std::size_t chunk) const;
  SharedWays* ways_of(const TensorName& block);
  /// The rows of a microbatch that this rank has in layers that tensor parallelism cuts.
  std::int64_t all_rows(const Sequences& sequences, bool decodes) const;
  /// The residual stream and the side rows of what another chunk has sent.
  Var take_in(Context& ctx, const ForwardInput& input, SideStream& side) const;
  /// What the next chunk wants of both.
  Var send_on(Context& ctx, const Var& residual, std::size_t chunk, const SideStream& side) const;
  /// The mixer with what it reads and makes; under activation checkpointing its inputs alone are kept.
  Var run_mixer(Context& ctx, const Block& block, const Var& x, const MixerCall& call, bool backward) const;
  /// The block's addition to the residual stream; undefined where a later block on the same norm adds it.
  Var run_block(Context& ctx, const Block& block, OnNorm& common, const MixerCall& call) const;
  /// Runs blocks on the residual sum. Returns the result of the norm behind them, or the residual sum where
  /// that norm is null. `call_of` makes the call of block i.
  Var run_blocks(Context& ctx, std::span<const Block> blocks, const Norm* last_norm, Var residual,
                 const std::function<MixerCall(std::size_t)>& call_of) const;
  /// `depth`: of multi-token prediction; 0: the input of the blocks.
  Var embed(Context& ctx, const Tensor& ids, const Sequences& sequences, bool cut,
            std::size_t depth = 0) const;

  ModelSetup setup_;
  DType dtype_;
  ModelPart part_;
  ParameterStore parameters_;
  TransformPoints points_;
  std::vector<std::unique_ptr<SharedWays>> ways_;
  std::optional<TokenFront> front_;
  std::optional<LanguageTail> tail_;
  std::optional<PerLayerInputs> per_layer_inputs_;
  bool has_side_rows_ = false;
  std::vector<std::pair<SideBoundary, SideBoundary>> boundaries_;  // of each chunk
  std::vector<Block> blocks_;
  std::vector<MtpDepth> mtp_depths_;
  std::vector<MoeMixer*> moe_layers_;
};

template <class M>
std::vector<M*> Stack::mixers() const {
  std::vector<M*> found;
  const auto add = [&](const std::vector<Block>& blocks) {
    for (const Block& block : blocks)
      if (auto* mixer = dynamic_cast<M*>(block.mixer.get())) found.push_back(mixer);
  };
  add(blocks_);
  for (const MtpDepth& depth : mtp_depths_) add(depth.blocks);
  return found;
}

}  // namespace nemocube
