#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/scan_words.h"
#include "ops/gated_rmsnorm/gated_rmsnorm.h"
#include "ops/ssd_scan/ssd_scan.h"

namespace nemocube {

inline constexpr ScanWords mamba_words{"Mamba blocks", "heads", "groups of B and C"};

/// The part of a Mamba-2 block between its projections, which needs whole sequences, head by head:
///     x, B, C = silu(conv1d(xBC)),  y = ssd_scan(x, dt, B, C)
/// xBC [T, inner + 2 group_width], dt [T, heads] -> y [T, inner]
struct MambaCore {
  SsdOptions scan;
  Var conv_weight, conv_bias;  ///< [inner + 2 group_width, 1, K]; [inner + 2 group_width] or undefined
  Var a_log, d, dt_bias;       ///< [heads]

  std::int64_t inner() const { return scan.heads * scan.head_dim; }
  std::int64_t group_width() const { return scan.groups * scan.state_size; }  ///< of B, and of C
  /// `conv_state` and `scan_state`: see the operations; null: sequences start from zeros.
  Var operator()(Context& ctx, const Var& xbc, const Var& dt, const Sequences& sequences,
                 Tensor* conv_state = nullptr, Tensor* scan_state = nullptr) const;
};
/// Computes `core` where several devices share the rows.
using MambaCoreRunner = std::function<Var(Context&, const MambaCore& core, const Var& xbc, const Var& dt,
                                          const Sequences& whole)>;

/// Mamba-2 (docs/mamba2.md):
///     z, xBC, dt = in_proj(u)
///     x, B, C = silu(conv1d(xBC))
///     out_proj(norm(ssd_scan(x, dt, B, C), z))
/// with the norm of MambaConfig::norm, and MambaMultipliers where they are not 1.
class MambaMixer final : public Mixer {
 public:
  MambaMixer(const MixerSources& sources, const TensorName& name);
  Var forward(Context& ctx, const Var& u, const MixerCall& call) override;
  std::unique_ptr<MixerState> make_state(std::int64_t count) const override;

  /// Replaces the call of the core, except where a state is given.
  void set_core_runner(MambaCoreRunner runner) { run_core_ = std::move(runner); }
  /// For norm groups that span devices: the local weights then hold a share of each of their groups.
  void set_norm_part(const NormGroupPart& part) { norm_part_ = part; }
  bool is_cut() const { return scan_.heads < all_heads_; }  ///< the local part has not all heads

 private:
  struct State;
  MambaCore core() const;
  /// z, x, B, C and dt side by side.
  Var projected(Context& ctx, const Var& u, const Sequences& sequences) const;
  Var gated(Context& ctx, const Var& y, const Var& z) const;
  SsdOptions scan_;
  std::int64_t all_heads_, conv_kernel_;
  double eps_;
  MambaNorm gate_and_norm_;
  MambaMultipliers multipliers_;
  Linear in_proj_, out_proj_;
  MambaCoreRunner run_core_;
  NormGroupPart norm_part_;
  const Parameter *conv_weight_, *conv_bias_, *a_log_, *d_, *dt_bias_;
  const Parameter* norm_;  // null: MambaNorm::none
};

}  // namespace nemocube
