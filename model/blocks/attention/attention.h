#pragma once
#include <optional>

#include "model/blocks/linear.h"
#include "model/norm.h"
#include "ops/attention/attention.h"

namespace nemocube {

/// Softmax attention over whole sequences: the operation `attention`, or one that several devices compute
/// together.
using AttentionCore = std::function<Var(Context&, const Var& q, const Var& k, const Var& v,
                                        const AttentionOptions&, const Sequences& whole)>;

/// The names of the keys and values of a block that later blocks read (SideRows).
TensorName shared_keys_of(std::int64_t block);
TensorName shared_values_of(std::int64_t block);

/// Grouped-query attention, causal unless the run denoises (DiffusionTraining), with a rotary embedding R of
/// queries and keys, norms N of the heads of queries and keys, a scale s of queries by position, slopes of
/// scores by distance, a window of keys, and a gate of each head's result, where the config has them
/// (docs/attention.md):
///     o_proj(attention(s R N q_proj x, R N k_proj x, v_proj x))
/// Values may be made of k_proj x, too, and have a norm; keys and values may be those of a block before.
class AttentionMixer final : public Mixer {
 public:
  AttentionMixer(const MixerSources& sources, const TensorName& name);
  Var forward(Context& ctx, const Var& x, const MixerCall& call) override;
  std::unique_ptr<MixerState> make_state(std::int64_t count) const override;

  std::int64_t heads() const { return options_.heads; }  ///< query heads of the local part
  bool is_cut() const { return heads() < all_heads_; }   ///< the local part has not all heads
  /// The heads of the local part begin at this one.
  void set_first_head(std::int64_t head) { first_head_ = head; }

  /// Replaces the operation `attention`, except where a state is given. `rows`: those of x that it gets.
  void set_core(AttentionCore core, RowCut rows) {
    core_ = std::move(core);
    rows_ = std::move(rows);
  }

 private:
  struct State;
  /// The projections with their norms, before the rotary embedding. `gate`: see AttentionConfig::output_gate.
  struct Projected {
    Var q, k, v, gate;
  };
  Projected project(Context& ctx, const Var& x, const Sequences& sequences) const;
  Var attend(Context& ctx, const Var& q, const Var& k, const Var& v, const AttentionOptions& options,
             const Sequences& sequences) const;
  /// The cache that has the keys and values of this call; appends them where no block has done so.
  State& cache(const Tensor& k, const Tensor& v, const MixerCall& call) const;
  void append(State& state, const Tensor& k, const Tensor& v, const Sequences& sequences) const;
  Tensor decode(Context& ctx, const Tensor& q, const State& state, const AttentionOptions& options,
                const Sequences& sequences) const;
  std::int64_t all_heads_, first_head_ = 0;
  bool alibi_, output_gate_;
  double input_multiplier_, output_multiplier_;
  AttentionOptions options_;
  DiffusionTraining diffusion_;
  RopeConfig rope_;
  PositionScale position_scale_;
  std::optional<Norm> q_norm_, k_norm_;
  double value_norm_eps_;  // 0: values have no norm
  bool keys_are_values_;
  /// Of the keys and values that this mixer reads or leaves: the block, and their names. `makes_kv_`: later
  /// blocks read them.
  std::int64_t kv_block_;
  TensorName shared_k_, shared_v_;
  bool reads_kv_, makes_kv_;
  AttentionCore core_;
  RowCut rows_;
  Transform qkv_input_;
  std::optional<Linear> q_proj_, k_proj_, v_proj_;
  std::optional<Linear> qkv_proj_;  // in the place of the three
  Linear o_proj_;
};

}  // namespace nemocube
