#pragma once
#include "core/tensor.h"

namespace nemocube {

/// Tensors (f64) that an update reads on the device, and the one that it writes. No update waits until the
/// host knows whether the step counts.
struct UpdateGate {
  Tensor grad_scale;  ///< [1]: multiplies the gradient first: the clip coefficient
  Tensor go;          ///< [1], 0: the update writes nothing, not even `finite`
  Tensor finite;  ///< [n]: element i becomes 0 when a number written of parameter i is not finite, else stays
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&grad_scale, &go, &finite}) fn(*t);
  }
};

/// Throws Error unless the tensors are f64 of these shapes, and `finite` has an element for parameter
/// `number`.
void check_gate(const UpdateGate& gate, std::int64_t number = 0);

namespace cpu {
inline bool goes(const UpdateGate& gate) { return gate.go.item<double>() != 0; }
inline void note_finite(const UpdateGate& gate, bool finite, std::int64_t number = 0) {
  if (!finite) gate.finite.data<double>()[number] = 0;
}
}  // namespace cpu

}  // namespace nemocube
