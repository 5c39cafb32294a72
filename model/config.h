#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/blocks/block_config.h"
#include "model/blocks/block_kind.h"
#include "model/choices.h"
#include "model/side_rows.h"
#include "model/tensor_name.h"
#include "model/tensor_spec.h"

/// The config of a model: its sizes, its blocks, and the names and shapes of its tensors. Field names are as
/// in Hugging Face's config classes. data/hf reads config.json.
namespace nemocube {

std::string to_pattern(std::span<const BlockKind> blocks);  ///< "MEM*-"

/// A parsed pattern string. `blocks` are the letters before the first '/'. Each '/' starts one list of `mtp`,
/// the blocks of one depth of multi-token prediction. '|' (a pipeline cut) is skipped. Any other letter
/// throws Error naming the letter and its position.
struct BlockPattern {
  std::vector<BlockKind> blocks;
  std::vector<std::vector<BlockKind>> mtp;
};
BlockPattern parse_pattern(std::string_view pattern);
std::vector<BlockKind> usual_mtp_blocks();  ///< attention, moe

/// A kind of block with sizes that blocks of a model have.
struct BlockVariant {
  BlockKind kind;
  const BlockConfig* config;        ///< in the ModelConfig
  std::optional<std::int64_t> own;  ///< the block whose own config this is; none: the common config
  std::int64_t count;               ///< how many of ModelConfig::blocks these are
};
/// For messages: " of block 3"; nothing for the common sizes (BlockVariant::own).
std::string of_block(std::optional<std::int64_t> own);
/// Calls `check`. Where the variant is a block's own, the message of an Error begins with "block 3: ".
void check_block(const BlockVariant& variant, const std::function<void()>& check);

/// What a model that denoises text knows of it.
struct DiffusionConfig {
  std::int64_t mask_token_id = 100;  ///< stands for what is to be found
  std::int64_t block_size = 32;      ///< tokens that are found together
  bool operator==(const DiffusionConfig&) const = default;
};

struct ModelConfig : BlockConfig {
  std::int64_t vocab_size = 131072;
  std::vector<BlockKind> blocks;
  /// In pruned models: the config of each block whose sizes differ from
  /// the common sizes, by number of the block.
  std::map<std::int64_t, BlockConfig> own_configs;
  bool residual_in_fp32 = false;
  double embedding_scale = 1;         ///< of the rows of the embeddings
  bool round_embedding_scale = true;  ///< to the dtype of the embeddings
  bool tie_word_embeddings = false;   ///< the embeddings' weight is the head's, too
  bool head_bias = false;
  bool normalized_head = false;  ///< the head's rows are divided by their lengths (NormHead of Baichuan 2)
  double logit_scale = 1;        ///< of the products of head and rows, before a bias and the cap
  double logit_softcap = 0;      ///< c of logits c tanh(z / c); 0: none
  /// w of a term w m^2 of the loss of each labelled row, m the largest logit; 0: none.
  double z_loss_weight = 0;

  std::int64_t num_nextn_predict_layers = 0;  ///< depths of multi-token prediction stored with the model
  std::vector<BlockKind> mtp_blocks = usual_mtp_blocks();  ///< the blocks of each depth

  double initializer_range = 0.02;
  bool rescale_prenorm_residual = true;
  std::int64_t max_position_embeddings = 4096;
  std::optional<std::int64_t> pad_token_id = 0, bos_token_id = 1;
  std::vector<std::int64_t> eos_token_id{2};
  std::optional<DiffusionConfig> diffusion;  ///< absent: the model denoises nothing
  std::optional<DType> dtype;  ///< of the stored weights, as config.json says; f16 appears as f32
  /// The residual stream behind the last block of each layer is multiplied by a number that is stored with
  /// the model and not trained (layer_scalar of Gemma 4).
  bool layer_scalars = false;
  ModelNames names;  ///< as the model's files spell them

  std::int64_t num_layers() const { return static_cast<std::int64_t>(blocks.size()); }
  bool has(BlockKind kind) const;  ///< in `blocks`, or in `mtp_blocks` when they are in use
  std::int64_t count(BlockKind kind) const;
  std::vector<BlockKind> kinds() const;  ///< for which has() is true, in the order of block_kinds()
  bool has_experts() const;              ///< whether one of kinds() has routed experts

  /// Config of all blocks without one of their own, blocks of multi-token prediction included.
  const BlockConfig& common() const { return *this; }
  const BlockConfig& block(std::int64_t i) const;  ///< of block i of `blocks`
  /// Config of the block to which this tensor or module belongs; the common one for names outside of blocks.
  const BlockConfig& of_tensor(const TensorName& name) const;
  /// Whether the mixer of the named tensor's block works on the same norm as the mixer of another block
  /// (Residual::shared_norm).
  bool shares_norm(const TensorName& name) const;
  /// Whether the residual stream behind this block has a layer_scalar.
  bool has_layer_scalar(const TensorName& block) const;
  bool shares_norm_with_next(const TensorName& name) const;  ///< and the next block does, too
  /// Whether, besides, the mixer's output enters the residual stream unchanged, so that the outputs of all
  /// mixers on the norm can be added first.
  bool shares_sum(const TensorName& name) const;
  /// What block i reads beside the residual stream.
  std::vector<SideRows> side_rows(std::int64_t i) const;
  /// What blocks from `block` on read of parts before that block, each rows once: the front's, then those of
  /// blocks in order. Of block 0 nothing but the front's.
  std::vector<SideRows> side_rows_across(std::int64_t block) const;
  /// The kind of the block to which this tensor or module belongs, blocks of multi-token prediction included;
  /// nothing for names outside of blocks.
  std::optional<BlockKind> kind_of(const TensorName& name) const;
  std::string text(const TensorName& name) const { return names.text(name); }
  /// The module that has the weight of the head: the embeddings where head and embeddings are tied.
  TensorName head_module() const { return tie_word_embeddings ? embeddings_name() : head_name(); }

  /// Throws Error unless a model of at most 2^50 parameters can be built from this config. The message names
  /// the key, the accepted values and the given value, and the block where that has a config of its own. Keys
  /// that no block kind in use needs are not checked.
  void validate() const;
  bool operator==(const ModelConfig&) const = default;
};

/// A model, and the choices of a run for it.
struct ModelSetup {
  ModelConfig config;
  ModelChoices choices = {};

  ModelSetup() = default;
  /// Trains all of the model unchanged, but no multi-token prediction, which may be stored with the model.
  ModelSetup(ModelConfig model) : config(std::move(model)) {}  // NOLINT: a config alone is such a setup
  ModelSetup(ModelConfig model, ModelChoices chosen) : config(std::move(model)), choices(std::move(chosen)) {}

  /// How many experts each block with routed experts has: the model's blocks, then the blocks of those depths
  /// of multi-token prediction that are trained and have weights.
  std::vector<std::int64_t> expert_counts() const;
  std::int64_t expert_layers() const;  ///< how many such blocks there are
  std::int64_t most_experts() const;   ///< of such a block; 0 without one
  /// Each kind of block in use with each of its configs: first the common config, if a block of the kind uses
  /// it, then the own configs of blocks. The result points into this setup.
  std::vector<BlockVariant> variants() const&;
  std::vector<BlockVariant> variants() && = delete;

  /// The number, for depth_name(), of block i of depth k of multi-token prediction. A
  /// repeated depth has the numbers of the first.
  std::int64_t block_of_depth(std::size_t k, std::size_t i = 0) const {
    return static_cast<std::int64_t>((choices.mtp.repeated ? 0 : k) * config.mtp_blocks.size() + i);
  }

  /// Sets choices.mtp, and config.num_nextn_predict_layers to its stored_depths() where depths are trained.
  void train_mtp(const MtpTraining& training);
  /// Throws Error unless the model can be built and the choices fit it: ModelConfig::validate(), and a
  /// message that names the choice, the accepted values and the given value.
  void validate() const;
  bool operator==(const ModelSetup&) const = default;
};

/// Every tensor of the model in canonical order: embeddings, blocks, final norm, head. Experts are stacked,
/// `experts.up_proj` [experts, inner, outer] and `experts.down_proj` [experts, outer, inner]. The two factors
/// of an adapter follow their weight. The tensors of multi-token prediction come last, and only where the run
/// trains them (ModelChoices::mtp). pre: the setup is valid
std::vector<TensorSpec> tensor_specs(const ModelSetup& setup);
/// The tensors of multi-token prediction; empty when the model has no such depth.
std::vector<TensorSpec> mtp_tensor_specs(const ModelSetup& setup);
/// What blocks read beside the residual stream, by its maker, each rows once.
std::map<std::int64_t, std::vector<SideRows>> side_rows_by_maker(const ModelConfig& config);
/// The model, with choices that train all its stored depths of multi-token prediction.
ModelSetup with_stored_mtp(ModelConfig config);
/// Whether the tensor of this name has keep_f32. pre: the model of this config has the tensor
bool keeps_f32(const ModelConfig& config, const TensorName& name);

}  // namespace nemocube
