#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/gelu/gelu_kernels.h"

namespace nemocube::gelu_bench {
namespace {

struct Work {
  Tensor x, y, dy, dx;
};

/// Checks y and dx of the last row.
bool verify(const Work& w) {
  const auto row = [](const Tensor& t) { return t.narrow(0, t.rows() - 1, 1).to_vector(); };
  const auto x = row(w.x), y = row(w.y), dy = row(w.dy), dx = row(w.dx);
  const double tolerance = w.x.dtype() == DType::bf16 ? 0x1p-8 : 1e-5, c = std::sqrt(2 / std::acos(-1.0));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double square = 0.044715 * x[i] * x[i], t = std::tanh(c * x[i] * (1 + square));
    const double slope = (1 + t) / 2 + x[i] / 2 * (1 - t * t) * c * (1 + 3 * square);
    if (!bench::close(y[i], x[i] / 2 * (1 + t), tolerance) || !bench::close(dx[i], dy[i] * slope, tolerance))
      return false;
  }
  return true;
}

const RegisterBench registration("gelu", [](const BenchOptions& o) {
  // 10240: the intermediate size of Phi-2.
  const std::int64_t rows = o.small ? 65 : o.emulated ? 64 : 2048, cols = o.small ? 96 : 10240;
  const Shape size{rows, cols};
  auto w = std::make_shared<Work>();
  *w = {bench::normal(o, size, "x"), Tensor::empty(size, o.dtype, o.device), bench::normal(o, size, "dy"),
        Tensor::empty(size, o.dtype, o.device)};
  const auto forward = [w] { gelu_forward(w->y, w->x); };
  const auto backward = [w] { gelu_backward(w->dx, w->dy, w->x); };
  const auto check = [w, forward, backward] {
    forward();
    backward();
    return verify(*w);
  };
  const BenchShape shape{{"rows", rows}, {"cols", cols}};
  return std::vector<BenchCase>{
      {"forward", shape, bench::bytes_of(w->x, w->y), 0, forward, check},
      {"backward", shape, bench::bytes_of(w->x, w->dy, w->dx), 0, backward, check},
  };
});

}  // namespace
}  // namespace nemocube::gelu_bench
