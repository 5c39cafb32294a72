#pragma once
#include "model/mixers/linear.h"
#include "ops/attention/attention.h"

namespace nemocube {

/// Causal grouped-query attention without position embeddings (docs/attention.md):
///     o_proj(attention(q_proj x, k_proj x, v_proj x))
class AttentionMixer final : public Mixer {
 public:
  AttentionMixer(const MixerSources& sources, const std::string& name);
  Var forward(Context& ctx, const Var& x, const MixerCall& call) override;
  std::unique_ptr<MixerState> make_state(std::int64_t count) const override;

 private:
  struct State;
  Tensor decode(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Sequences& sequences,
                State& state) const;
  AttentionOptions options_;
  Transform qkv_input_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
};

}  // namespace nemocube
