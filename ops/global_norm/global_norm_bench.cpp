#include <cmath>

#include "ops/bench_support.h"
#include "ops/global_norm/global_norm.h"

namespace nemocube::global_norm_bench {
namespace {

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  const std::int64_t count = o.small ? 3 : 25, each = o.small ? 1001 : o.emulated ? 40'000 : 2'000'000;
  std::vector<Tensor> tensors;
  for (std::int64_t i = 0; i < count; ++i) {
    const Tensor values = Tensor::empty({each}, o.dtype, Device::cpu);
    fill_uniform(values, RandomStream(static_cast<std::uint64_t>(i), "grad"), -1, 1);
    tensors.push_back(values.to(o.device));
  }
  BenchCase c{"norm", {{"tensors", count}, {"elements", count * each}}};
  c.bytes = static_cast<double>(count) * bench::bytes_of(tensors.front());
  c.run = [tensors, device = o.device] { sum_of_squares(tensors, device); };
  c.verify = [tensors, device = o.device] {
    double sum = 0;
    for (const Tensor& t : tensors)
      for (const double v : t.to_vector()) sum += v * v;
    const auto got = sum_of_squares(tensors, device).to_vector();
    return got[1] == 0 && got[2] == 1 && std::abs(got[0] - sum) <= 1e-9 * sum;
  };
  return {c};
}

const RegisterBench registration("global_norm", make_cases);

}  // namespace
}  // namespace nemocube::global_norm_bench
