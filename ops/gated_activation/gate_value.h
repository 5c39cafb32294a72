#pragma once
#include <type_traits>

#include "core/cuda/host_and_device.h"
#include "ops/gated_activation/gated_activation.h"

/// The arithmetic of phi, for the kernels of the CPU and of CUDA. With the logistic function s and
/// a = gate_logit(g), sigmoid is s(a) and the other phi are g s(a): (1 + tanh(z)) / 2 is s(2 z), which does
/// not cancel where z is negative.
namespace nemocube {

/// Calls fn(constant) with a std::integral_constant of phi.
template <class Fn>
void visit_gate(GateActivation phi, Fn&& fn) {
  switch (phi) {
    case GateActivation::silu:
      return fn(std::integral_constant<GateActivation, GateActivation::silu>());
    case GateActivation::gelu_tanh:
      return fn(std::integral_constant<GateActivation, GateActivation::gelu_tanh>());
    case GateActivation::sigmoid:
      return fn(std::integral_constant<GateActivation, GateActivation::sigmoid>());
  }
}

namespace gate_detail {

/// g within limits beyond which s is 0 or 1, in f64, too. s and 1 - s times an infinite g would be NaN.
template <class A>
NEMOCUBE_HOST_AND_DEVICE inline A not_below(A g) {
  return g < A(-1000) ? A(-1000) : g;  // NaN stays NaN
}
template <class A>
NEMOCUBE_HOST_AND_DEVICE inline A limited(A g) {
  return g > A(1000) ? A(1000) : not_below(g);
}

template <class A>
inline constexpr A cubic = A(0.044715);
template <class A>
inline constexpr A twice_c = A(1.5957691216057308);  // 2 sqrt(2 / pi)

}  // namespace gate_detail

/// a.
template <GateActivation phi, class A>
NEMOCUBE_HOST_AND_DEVICE inline A gate_logit(A g) {
  const A x = gate_detail::limited(g);
  if constexpr (phi != GateActivation::gelu_tanh) return x;
  return gate_detail::twice_c<A> * x * (A(1) + gate_detail::cubic<A> * x * x);
}

/// phi(g), for s = s(a).
template <GateActivation phi, class A>
NEMOCUBE_HOST_AND_DEVICE inline A gate_value(A g, A s) {
  if constexpr (phi == GateActivation::sigmoid) return s;
  return gate_detail::not_below(g) * s;
}

/// phi'(g) = s (1 + g a' (1 - s)), of sigmoid s (1 - s), for s = s(a).
template <GateActivation phi, class A>
NEMOCUBE_HOST_AND_DEVICE inline A gate_slope(A g, A s) {
  if constexpr (phi == GateActivation::sigmoid) return s * (A(1) - s);
  const A x = gate_detail::limited(g);
  if constexpr (phi == GateActivation::silu) return s * (A(1) + x * (A(1) - s));
  const A slope_of_a = gate_detail::twice_c<A> * (A(1) + A(3) * gate_detail::cubic<A> * x * x);
  return s * (A(1) + x * slope_of_a * (A(1) - s));
}

}  // namespace nemocube
