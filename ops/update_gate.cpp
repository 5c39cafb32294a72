#include "ops/update_gate.h"

namespace nemocube {
namespace {

void check(const char* what, const Tensor& t) {
  check_dtype(what, t, DType::f64);
  check_shape(what, t, {1});
}

}  // namespace

void check_gate(const UpdateGate& gate) {
  check("update gate: grad_scale", gate.grad_scale);
  check("update gate: go", gate.go);
  check("update gate: finite", gate.finite);
}

}  // namespace nemocube
