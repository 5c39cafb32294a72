#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/relu2/relu2.h"
#include "ops/relu2/relu2_kernels.h"

namespace nemocube::relu2_bench {
namespace {

struct Work {
  Tensor x, y, dy, dx;
};

bool verify(const Work& w) {
  const auto x = w.x.to_vector(), y = w.y.to_vector(), dy = w.dy.to_vector(), dx = w.dx.to_vector();
  const double tolerance = w.x.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-22;
  const auto near = [=](double got, double want) {
    return std::abs(got - want) <= tolerance * std::abs(want);
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double p = x[i] > 0 ? x[i] : 0;
    if (!near(y[i], p * p) || !near(dx[i], 2 * p * dy[i])) return false;
  }
  return true;
}

const RegisterBench registration("relu2", [](const BenchOptions& o) {
  std::vector<BenchCase> list;
  using Size = std::pair<std::int64_t, std::int64_t>;
  const std::vector<Size> sizes = o.small      ? std::vector<Size>{{65, 96}}
                                  : o.nano     ? std::vector<Size>{{o.emulated ? 512 : 8192, 3712}}
                                  : o.emulated ? std::vector<Size>{{1024, 1024}}
                                               : std::vector<Size>{{2048, 2048}, {8192, 8192}};
  for (const auto& [rows, cols] : sizes) {
    auto w = std::make_shared<Work>();
    const Shape size{rows, cols};
    *w = {bench::normal(o, size, "x"), Tensor::empty(size, o.dtype, o.device), bench::normal(o, size, "dy"),
          Tensor::empty(size, o.dtype, o.device)};
    const auto forward = [w] { relu2_forward(w->y, w->x); };
    const auto backward = [w] { relu2_backward(w->dx, w->dy, w->y); };
    const auto check = [w, forward, backward] {
      forward();
      backward();
      return verify(*w);
    };
    const BenchShape shape{{"rows", rows}, {"cols", cols}};
    list.push_back({"forward", shape, bench::bytes_of(w->x, w->y), 0, forward, check});
    list.push_back({"backward", shape, bench::bytes_of(w->y, w->dy, w->dx), 0, backward, check});
  }
  return list;
});

}  // namespace
}  // namespace nemocube::relu2_bench
