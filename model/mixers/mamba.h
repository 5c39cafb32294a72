#pragma once
#include "model/mixers/linear.h"
#include "ops/ssd_scan/ssd_scan.h"

namespace nemocube {

/// Mamba-2 (docs/mamba2.md):
///     z, xBC, dt = in_proj(u)
///     x, B, C = silu(conv1d(xBC))
///     out_proj(norm(ssd_scan(x, dt, B, C), z))
class MambaMixer final : public Mixer {
 public:
  MambaMixer(const MixerSources& sources, const std::string& name);
  Var forward(Context& ctx, const Var& u, const MixerCall& call) override;
  std::unique_ptr<MixerState> make_state(std::int64_t count) const override;

 private:
  struct State;
  SsdOptions scan_;
  std::int64_t inner_, group_width_, conv_kernel_;
  double eps_;
  Linear in_proj_, out_proj_;
  const Parameter *conv_weight_, *conv_bias_, *a_log_, *d_, *dt_bias_, *norm_;
};

}  // namespace nemocube
