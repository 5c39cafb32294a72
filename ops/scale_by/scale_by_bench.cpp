#include <memory>

#include "ops/bench_support.h"
#include "ops/scale_by/scale_by_kernels.h"

namespace nemocube::scale_by_bench {
namespace {

struct Work {
  Tensor x, s, y;
};

bool verify(const Work& w) {
  const auto x = w.x.to_vector(), y = w.y.to_vector();
  const double s = w.s.to_vector()[0], tolerance = w.x.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-22;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!bench::close(y[i], x[i] * s, tolerance)) return false;
  return true;
}

const RegisterBench registration("scale_by", [](const BenchOptions& o) {
  // 2816: the hidden size of Gemma 4 26B-A4B.
  const std::int64_t rows = o.small ? 65 : o.emulated ? 256 : 8192, cols = o.small ? 96 : 2816;
  const auto w = std::make_shared<Work>(Work{bench::normal(o, {rows, cols}, "x"), bench::normal(o, {1}, "s"),
                                             Tensor::empty({rows, cols}, o.dtype, o.device)});
  return std::vector<BenchCase>{{"scale",
                                 {{"rows", rows}, {"cols", cols}},
                                 bench::bytes_of(w->x, w->s, w->y),
                                 0,
                                 [w] { scale_by_kernel(w->y, w->x, w->s); },
                                 [w] { return verify(*w); }}};
});

}  // namespace
}  // namespace nemocube::scale_by_bench
