#include "train/bench/rates.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/parallel_for.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "ops/matmul/matmul.h"
#include "train/bench/timing.h"

namespace nemocube {
namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;

/// One cache line. Integers, because adding them takes one cycle and no value is slow.
typedef std::uint64_t Line __attribute__((vector_size(64)));
constexpr std::int64_t line_bytes = 64;

/// Keeps the compiler from dropping or moving loops over memory.
void touched() { asm volatile("" ::: "memory"); }

void read(const Line* __restrict from, std::int64_t lines) {
  Line sum[8] = {};  // independent sums: one alone would wait for itself
  std::int64_t i = 0;
  for (; i + 8 <= lines; i += 8)
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) sum[k] |= from[i + k];
  for (; i < lines; ++i) sum[0] |= from[i];
  for (const Line& s : sum) asm volatile("" ::"m"(s));
}

void update(Line* __restrict to, std::int64_t lines) {
  for (std::int64_t i = 0; i < lines; ++i) to[i] += 1;
}

void add(Line* __restrict to, const Line* __restrict from, std::int64_t lines) {
  for (std::int64_t i = 0; i < lines; ++i) to[i] += from[i];
}

/// Best time of one pass over this thread's part: fn(first line, lines) on every thread, passes without a
/// barrier in between until they are long enough to be timed.
template <class Fn>
double best_pass(std::int64_t lines, std::int64_t bytes, Fn&& fn) {
  const std::int64_t passes = std::max<std::int64_t>(1, 64 * mib / bytes);
  const auto run = [&] {
#pragma omp parallel
    {
      const std::int64_t count = omp_get_num_threads(), self = omp_get_thread_num();
      const std::int64_t begin = lines * self / count, end = lines * (self + 1) / count;
      for (std::int64_t p = 0; p < passes; ++p) {
        fn(begin, end - begin);
        touched();
      }
    }
  };
  run();
  double best = std::numeric_limits<double>::infinity(), total = 0;
  for (int i = 0; i < 3 || (i < 20 && total < 0.02); ++i) {
    const double seconds = seconds_of(run);
    total += seconds;
    best = std::min(best, seconds);
  }
  return best / static_cast<double>(passes);
}

}  // namespace

double Rates::bytes_per_second(std::int64_t bytes) const {
  const auto larger = std::ranges::upper_bound(bandwidth, bytes, {}, &Bandwidth::bytes);
  return (larger == bandwidth.begin() ? larger : larger - 1)->bytes_per_second;
}

std::vector<Bandwidth> measure_bandwidth(std::int64_t most_bytes) {
  const Tensor memory = Tensor::empty({most_bytes}, DType::u8, Device::cpu);  // rates of the CPU
  auto* const lines = reinterpret_cast<Line*>(memory.host_bytes());
  // Pages never written are all one page of zeros, which every cache holds.
  parallel_for(most_bytes / line_bytes, 1, [=](std::int64_t begin, std::int64_t end) {
    std::memset(lines + begin, 1, static_cast<std::size_t>((end - begin) * line_bytes));
  });
  std::vector<Bandwidth> list;
  for (std::int64_t bytes = 16 * 1024; bytes <= most_bytes; bytes *= 2) {
    // Lines of each array, so that a pass moves `bytes`.
    const std::int64_t all = bytes / line_bytes, half = all / 2, third = all / 3;
    Line* const other = lines + third;
    const double seconds = std::min(
        {best_pass(all, bytes, [=](std::int64_t i, std::int64_t n) { read(lines + i, n); }),
         best_pass(half, bytes, [=](std::int64_t i, std::int64_t n) { update(lines + i, n); }),
         best_pass(third, bytes, [=](std::int64_t i, std::int64_t n) { add(lines + i, other + i, n); })});
    list.push_back({bytes, static_cast<double>(bytes) / seconds});
  }
  expect(!list.empty(), "bandwidth at no size: at most ", most_bytes, " bytes");
  // A smaller size is never slower than a larger one; measurements that say otherwise are noise.
  for (std::size_t i = list.size() - 1; i > 0; --i)
    list[i - 1].bytes_per_second = std::max(list[i - 1].bytes_per_second, list[i].bytes_per_second);
  return list;
}

double measure_products(DType dtype, std::int64_t largest) {
  double best = 0;
  std::vector<DType> dtypes{dtype};
  if (accumulate_dtype(dtype) != dtype) dtypes.push_back(accumulate_dtype(dtype));
  for (const DType d : dtypes)
    for (std::int64_t m = std::min<std::int64_t>(largest, 512); m <= largest; m *= 2) {
      const auto square = [&] { return Tensor::empty({m, m}, d, Device::cpu); };  // rates of the CPU
      const Tensor a = square(), b = square(), c = square();
      fill_normal(a, RandomStream(1, "a"), 0, 1);
      fill_normal(b, RandomStream(1, "b"), 0, 1);
      const auto product = [&] { matmul({c, Into::set}, a, false, b, true); };
      product();
      double total = 0;
      for (int i = 0; i < 3 || (i < 20 && total < 0.2); ++i) {
        const double seconds = seconds_of(product), side = static_cast<double>(m);
        total += seconds;
        best = std::max(best, 2 * side * side * side / seconds);
      }
    }
  return best;
}

Rates measure_rates(const Machine& machine, DType dtype, bool small) {
  // Far beyond the last cache is memory; a quarter of the machine's is enough to find out.
  std::int64_t most = std::clamp(4 * machine.largest_cache(), 256 * mib, 1024 * mib);
  if (machine.memory_bytes > 0) most = std::clamp(machine.memory_bytes / 4, mib, most);
  return {measure_bandwidth(small ? mib : most), measure_products(dtype, small ? 128 : 2048)};
}

}  // namespace nemocube
