#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/scale_columns/scale_columns_kernels.h"

namespace nemocube::scale_columns_bench {
namespace {

struct Work {
  Tensor x, y;
  ColumnFactors parts;
};

bool verify(const Work& w) {
  const auto x = w.x.to_vector(), y = w.y.to_vector();
  const double tolerance = w.x.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-22;
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::size_t part = 0;
    while (static_cast<std::int64_t>(i) % w.x.cols() >= w.parts.ends[part]) ++part;
    if (!bench::close(y[i], x[i] * w.parts.factors[part], tolerance)) return false;
  }
  return true;
}

const RegisterBench registration("scale_columns", [](const BenchOptions& o) {
  std::vector<BenchCase> list;
  // The projection of Falcon-H1 34B: z, x, B, C and dt of a mixer of 32 heads of 128 channels, with a state
  // of 256 and, as is assumed, two groups.
  const std::int64_t inner = o.small ? 48 : 4096, state = o.small ? 16 : 512, heads = 32;
  const std::int64_t rows = o.small ? 65 : o.emulated ? 128 : 8192, cols = 2 * inner + 2 * state + heads;
  const Tensor x = bench::normal(o, {rows, cols}, "x"), y = Tensor::empty(x.shape(), o.dtype, o.device);
  const BenchShape shape{{"rows", rows}, {"cols", cols}};
  const ColumnFactors one{1, {cols}, {0.75}},
      five{5,
           {inner, 2 * inner, 2 * inner + state, 2 * inner + 2 * state, cols},
           {0.35, 0.25, 0.36, 0.5, 0.37}};
  for (const auto& [name, parts] : {std::pair{"one factor", one}, std::pair{"five factors", five}}) {
    auto w = std::make_shared<Work>(Work{x, y, parts});
    list.push_back({name, shape, bench::bytes_of(w->x, w->y), 0,
                    [w] { scale_columns_kernel(w->y, w->x, w->parts); }, [w] { return verify(*w); }});
  }
  return list;
});

}  // namespace
}  // namespace nemocube::scale_columns_bench
