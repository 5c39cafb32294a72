#include <cmath>

#include "core/rng.h"
#include "ops/bench.h"
#include "ops/global_norm/global_norm.h"

namespace nemocube {
namespace {

struct Run {
  std::vector<Tensor> tensors;
  NormResult result;
};

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  const std::int64_t count = o.small ? 3 : 25, each = o.small ? 1001 : 2'000'000;
  auto run = std::make_shared<Run>();
  for (std::int64_t i = 0; i < count; ++i) {
    run->tensors.push_back(Tensor::empty({each}, o.dtype));
    fill_uniform(run->tensors.back(), RandomStream(static_cast<std::uint64_t>(i), "grad"), -1, 1);
  }
  const auto n = static_cast<double>(count * each);
  return {{"norm", cat("tensors=", count, " elements=", count * each),
           n * static_cast<double>(size_of(o.dtype)), 2 * n,
           [run] { run->result = global_norm(run->tensors); },
           [run] {
             double sum = 0;
             for (const Tensor& t : run->tensors)
               for (const double v : t.to_vector()) sum += v * v;
             const double want = std::sqrt(sum);
             return run->result.finite && std::abs(run->result.norm - want) <= 1e-9 * want;
           }}};
}

const RegisterBench bench("global_norm", make_cases);

}  // namespace
}  // namespace nemocube
