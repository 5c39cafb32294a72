#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/row_gate/row_gate_kernels.h"

namespace nemocube::row_gate_bench {
namespace {

struct Work {
  Tensor x, gate, y, dy, dx, dgate;
};

/// Checks y, or the gradients, of the last row.
bool verify(const Work& w, bool gradients) {
  const auto row = [](const Tensor& t) { return t.narrow(0, t.rows() - 1, 1).to_vector(); };
  const auto x = row(w.x), dy = row(w.dy), got = row(gradients ? w.dx : w.y);
  const double s = 1 / (1 + std::exp(-row(w.gate)[0])),
               tolerance = w.x.dtype() == DType::bf16 ? 0x1p-8 : 1e-5;
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!bench::close(got[i], (gradients ? dy : x)[i] * s, tolerance)) return false;
    sum += x[i] * dy[i];
  }
  return !gradients || bench::close(row(w.dgate)[0], s * (1 - s) * sum, tolerance);
}

const RegisterBench registration("row_gate", [](const BenchOptions& o) {
  // 2048: the hidden size of Qwen 3.5 35B-A3B.
  const std::int64_t rows = o.small ? 65 : o.emulated ? 256 : 8192, cols = o.small ? 96 : 2048;
  const Shape size{rows, cols}, of_rows{rows, 1};
  const auto empty = [&](const Shape& shape) { return Tensor::empty(shape, o.dtype, o.device); };
  const auto w =
      std::make_shared<Work>(Work{bench::normal(o, size, "x"), bench::normal(o, of_rows, "gate"), empty(size),
                                  bench::normal(o, size, "dy"), empty(size), empty(of_rows)});
  const BenchShape shape{{"rows", rows}, {"cols", cols}};
  return std::vector<BenchCase>{
      {"forward", shape, bench::bytes_of(w->x, w->gate, w->y), 0,
       [w] { row_gate_forward(w->y, w->x, w->gate); }, [w] { return verify(*w, false); }},
      {"backward", shape, bench::bytes_of(w->dy, w->x, w->gate, w->dx, w->dgate), 0,
       [w] { row_gate_backward(w->dx, w->dgate, w->dy, w->x, w->gate); }, [w] { return verify(*w, true); }},
  };
});

}  // namespace
}  // namespace nemocube::row_gate_bench
