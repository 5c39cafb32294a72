#pragma once
#include "core/tensor.h"

namespace nemocube {

/// What the update of one parameter reads from the device and notes there, each [1] f64. No update waits for the
/// host to know whether the step counts.
struct UpdateGate {
  Tensor grad_scale;  ///< multiplies the gradient first: the clip coefficient
  Tensor go;          ///< 0: the update writes nothing, `finite` neither
  Tensor finite;      ///< set to 0 when a number that was written is not finite, else left as it is
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&grad_scale, &go, &finite}) fn(*t);
  }
};

/// Throws Error unless all three are [1] f64.
void check_gate(const UpdateGate& gate);

namespace cpu {
inline bool goes(const UpdateGate& gate) { return gate.go.item<double>() != 0; }
inline void note_finite(const UpdateGate& gate, bool finite) {
  if (!finite) *gate.finite.data<double>() = 0;
}
}  // namespace cpu

}  // namespace nemocube
