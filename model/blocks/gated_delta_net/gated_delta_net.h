#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/scan_words.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"

namespace nemocube {

inline constexpr ScanWords delta_net_words{"Gated DeltaNet blocks", "value heads", "key heads"};

/// The part of a Gated DeltaNet block between its projections, which needs whole sequences, head by head:
///     q, k, v = silu(conv1d(qkv)),  y = gated_delta_rule(q, k, v, a, b)
/// qkv [T, 2 key_width + value_width], a and b [T, value_heads] -> y [T, value_width]
struct DeltaNetCore {
  DeltaRuleOptions rule;
  Var conv_weight;     ///< [2 key_width + value_width, 1, K]
  Var a_log, dt_bias;  ///< [value_heads]

  std::int64_t key_width() const { return rule.key_heads * rule.key_dim; }  ///< of queries, and of keys
  std::int64_t value_width() const { return rule.value_heads * rule.value_dim; }
  /// `conv_state` and `rule_state`: see the operations; null: sequences start from zeros.
  Var operator()(Context& ctx, const Var& qkv, const Var& a, const Var& b, const Sequences& sequences,
                 Tensor* conv_state = nullptr, Tensor* rule_state = nullptr) const;
};
/// Computes `core` where several devices share the rows.
using DeltaNetCoreRunner = std::function<Var(Context&, const DeltaNetCore& core, const Var& qkv, const Var& a,
                                             const Var& b, const Sequences& whole)>;

/// Gated DeltaNet (docs/gated_delta_rule.md):
///     q, k, v = silu(conv1d(in_proj_qkv u)),  z = in_proj_z u,  a = in_proj_a u,  b = in_proj_b u
///     out_proj((rmsnorm(gated_delta_rule(q, k, v, a, b)) w) silu(z))
/// with a norm of each value head, whose weight w [value_head_dim] all heads share.
class GatedDeltaNetMixer final : public Mixer {
 public:
  GatedDeltaNetMixer(const MixerSources& sources, const TensorName& name);
  Var forward(Context& ctx, const Var& u, const MixerCall& call) override;
  std::unique_ptr<MixerState> make_state(std::int64_t count) const override;

  /// Replaces the call of the core, except where a state is given.
  void set_core_runner(DeltaNetCoreRunner runner) { run_core_ = std::move(runner); }

 private:
  struct State;
  DeltaNetCore core() const;
  DeltaRuleOptions rule_;
  std::int64_t conv_kernel_;
  double eps_;
  Transform input_;
  Linear in_proj_qkv_, in_proj_z_, in_proj_b_, in_proj_a_, out_proj_;
  DeltaNetCoreRunner run_core_;
  const Parameter *conv_weight_, *a_log_, *dt_bias_, *norm_;
};

}  // namespace nemocube
