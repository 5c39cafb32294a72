#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/gated_activation/gated_activation_kernels.h"

namespace nemocube::gated_activation_bench {
namespace {

struct Work {
  GateActivation phi;
  Tensor gate, up, y, dy, dgate, dup;
};

/// Checks y, or the gradients, of the last row.
bool verify(const Work& w, bool gradients) {
  const auto row = [](const Tensor& t) { return t.narrow(0, t.rows() - 1, 1).to_vector(); };
  const auto gate = row(w.gate), up = row(w.up), dy = row(w.dy), y = row(w.y);
  const auto dgate = gradients ? row(w.dgate) : y, dup = gradients ? row(w.dup) : y;
  const double tolerance = w.gate.dtype() == DType::bf16 ? 0x1p-8 : 1e-5;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    double value = 0, slope = 0;
    if (w.phi == GateActivation::silu) {
      const double s = 1 / (1 + std::exp(-g));
      value = g * s;
      slope = s * (1 + g * (1 - s));
    } else if (w.phi == GateActivation::sigmoid) {
      value = 1 / (1 + std::exp(-g));
      slope = value * (1 - value);
    } else {
      const double c = std::sqrt(2 / 3.14159265358979323846), t = std::tanh(c * (g + 0.044715 * g * g * g));
      value = g / 2 * (1 + t);
      slope = (1 + t) / 2 + g / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * g * g);
    }
    if (!gradients && !bench::close(y[i], value * up[i], tolerance)) return false;
    if (gradients && !(bench::close(dgate[i], dy[i] * up[i] * slope, tolerance) &&
                       bench::close(dup[i], dy[i] * value, tolerance)))
      return false;
  }
  return true;
}

const RegisterBench registration("gated_activation", [](const BenchOptions& o) {
  std::vector<BenchCase> list;
  // 14336: the intermediate size of Llama 3 8B.
  const std::int64_t rows = o.small ? 65 : o.emulated ? 64 : 2048, cols = o.small ? 96 : 14336;
  const Shape size{rows, cols};
  const BenchShape shape{{"rows", rows}, {"cols", cols}};
  const auto normal = [&](const char* name) { return bench::normal(o, size, name); };
  const auto empty = [&] { return Tensor::empty(size, o.dtype, o.device); };
  const Work operands{{}, normal("gate"), normal("up"), empty(), normal("dy"), empty(), empty()};
  for (const auto& [phi, name] :
       {std::pair{GateActivation::silu, "silu"}, std::pair{GateActivation::gelu_tanh, "gelu_tanh"},
        std::pair{GateActivation::sigmoid, "sigmoid"}}) {
    auto w = std::make_shared<Work>(operands);
    w->phi = phi;
    list.push_back({std::string(name) + " forward", shape, bench::bytes_of(w->gate, w->up, w->y), 0,
                    [w] { gated_activation_forward(w->y, w->gate, w->up, w->phi); },
                    [w] { return verify(*w, false); }});
    list.push_back({std::string(name) + " backward", shape,
                    bench::bytes_of(w->dy, w->gate, w->up, w->dgate, w->dup), 0,
                    [w] { gated_activation_backward(w->dgate, w->dup, w->dy, w->gate, w->up, w->phi); },
                    [w] { return verify(*w, true); }});
  }
  return list;
});

}  // namespace
}  // namespace nemocube::gated_activation_bench
