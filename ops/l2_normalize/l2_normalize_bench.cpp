#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/l2_normalize/l2_normalize_kernels.h"

namespace nemocube::l2_normalize_bench {
namespace {

struct Work {
  Tensor x, y, dy, dx;
};

/// Checks y and dx of the last row.
bool verify(const Work& w) {
  const auto row = [](const Tensor& t) { return t.narrow(0, t.rows() - 1, 1).to_vector(); };
  const auto x = row(w.x), y = row(w.y), dy = row(w.dy), dx = row(w.dx);
  double squares = 0, dot = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    squares += x[i] * x[i];
    dot += x[i] * dy[i];
  }
  const double norm = std::sqrt(squares), tolerance = w.x.dtype() == DType::bf16 ? 0x1p-8 : 1e-5;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!bench::close(y[i], x[i] / norm, tolerance) ||
        !bench::close(dx[i], (dy[i] - x[i] * dot / squares) / norm, tolerance))
      return false;
  return true;
}

const RegisterBench registration("l2_normalize", [](const BenchOptions& o) {
  // 4096 columns: the head of Baichuan 2 7B, whose 125,696 rows are cut to 8192.
  const std::int64_t rows = o.small ? 65 : o.emulated ? 256 : 8192, cols = o.small ? 96 : 4096;
  const Shape size{rows, cols};
  auto w = std::make_shared<Work>();
  // The gradient of a weight is f32.
  *w = {bench::normal(o, size, "x"), Tensor::empty(size, o.dtype, o.device), bench::normal(o, size, "dy"),
        Tensor::empty(size, accumulate_dtype(o.dtype), o.device)};
  const auto forward = [w] { l2_normalize_forward(w->y, w->x, 1e-12); };
  const auto backward = [w] { l2_normalize_backward({w->dx, Into::set}, w->dy, w->x, 1e-12); };
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
}  // namespace nemocube::l2_normalize_bench
