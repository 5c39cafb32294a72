#include "ops/update_gate.h"

namespace nemocube {
namespace {

void check(const char* what, const Tensor& t) {
  check_dtype(what, t, DType::f64);
  check_shape(what, t, {1});
}

}  // namespace

void check_gate(const UpdateGate& gate, std::int64_t number) {
  check("update gate: grad_scale", gate.grad_scale);
  check("update gate: go", gate.go);
  check_dtype("update gate: finite", gate.finite, DType::f64);
  require(gate.finite.ndim() == 1 && gate.finite.contiguous() && gate.finite.numel() > number,
          "update gate: finite: want an element for parameter ", number, ", got shape ", gate.finite.shape());
}

}  // namespace nemocube
