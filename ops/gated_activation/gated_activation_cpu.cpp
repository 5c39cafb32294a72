#include "ops/gated_activation/gate_value.h"
#include "ops/gated_activation/gated_activation_kernels.h"
#include "ops/ivdep.h"
#include "ops/math.h"
#include "ops/pieces_cpu.h"

namespace nemocube::cpu {
namespace {

// Each a function of its own: GCC 12 leaves branches in the loops of one that holds them all, and does not
// vectorise these.
template <GateActivation phi, class T>
[[gnu::noinline]] void forward(const Tensor& y, const Tensor& gate, const Tensor& up) {
  using A = acc_t<T>;
  const bool flat = y.contiguous() && gate.contiguous() && up.contiguous();
  for_pieces(gate.rows(), gate.cols(), flat, [&](auto r, auto first, auto last) {
    const T *gates = gate.row<T>(r), *ups = up.row<T>(r);
    T* to = y.row<T>(r);
    NEMOCUBE_IVDEP
    for (std::int64_t c = first; c < last; ++c) {
      const A g = static_cast<A>(gates[c]), s = sigmoid(gate_logit<phi>(g));
      to[c] = static_cast<T>(gate_value<phi>(g, s) * static_cast<A>(ups[c]));
    }
  });
}

template <GateActivation phi, class T, bool wants_gate, bool wants_up>
[[gnu::noinline]] void backward(const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                                const Tensor& up) {
  using A = acc_t<T>;
  const bool flat =
      dgate.contiguous() && dup.contiguous() && dy.contiguous() && gate.contiguous() && up.contiguous();
  for_pieces(gate.rows(), gate.cols(), flat, [&](auto r, auto first, auto last) {
    const T *back = dy.row<T>(r), *gates = gate.row<T>(r), *ups = up.row<T>(r);
    T* to_gate = wants_gate ? dgate.row<T>(r) : nullptr;
    T* to_up = wants_up ? dup.row<T>(r) : nullptr;
    NEMOCUBE_IVDEP
    for (std::int64_t c = first; c < last; ++c) {
      const A d = static_cast<A>(back[c]), g = static_cast<A>(gates[c]), u = static_cast<A>(ups[c]);
      const A s = sigmoid(gate_logit<phi>(g));
      if constexpr (wants_gate) to_gate[c] = static_cast<T>(d * u * gate_slope<phi>(g, s));
      if constexpr (wants_up) to_up[c] = static_cast<T>(d * gate_value<phi>(g, s));
    }
  });
}

}  // namespace

void gated_activation_forward(const Tensor& y, const Tensor& gate, const Tensor& up, GateActivation phi) {
  if (gate.numel() == 0) return;
  visit_float("gated_activation", gate.dtype(), [&]<class T>(TypeTag<T>) {
    visit_gate(phi, [&](auto chosen) { forward<chosen, T>(y, gate, up); });
  });
}

void gated_activation_backward(const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                               const Tensor& up, GateActivation phi) {
  if (gate.numel() == 0) return;
  visit_float("gated_activation", gate.dtype(), [&]<class T>(TypeTag<T>) {
    visit_gate(phi, [&](auto chosen) {
      if (dgate && dup)
        backward<chosen, T, true, true>(dgate, dup, dy, gate, up);
      else if (dgate)
        backward<chosen, T, true, false>(dgate, dup, dy, gate, up);
      else
        backward<chosen, T, false, true>(dgate, dup, dy, gate, up);
    });
  });
}

}  // namespace nemocube::cpu
