#include "train/bench/bench_op.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "core/log.h"
#include "core/rng.h"
#include "ops/matmul/matmul.h"
#include "train/bench/bench_step.h"

namespace nemocube {
namespace {

using Clock = std::chrono::steady_clock;

template <class Fn>
std::vector<double> time_calls(Fn&& fn, int repeats) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    fn();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

struct Line {
  std::string op, variant, shape;
  bool ok = false;
  double bytes = 0, flops = 0;
  double median_us = 0, best_us = 0, floor_us = 0, gbps = 0, gflops = 0;
};

void print(const Line& l, bool json, std::ostream& out) {
  const double fraction = l.floor_us / l.median_us;
  if (json) {
    out << nlohmann::json({{"op", l.op},
                           {"variant", l.variant},
                           {"shape", l.shape},
                           {"ok", l.ok},
                           {"bytes", l.bytes},
                           {"flops", l.flops},
                           {"us_median", l.median_us},
                           {"us_best", l.best_us},
                           {"GBps", l.gbps},
                           {"GFLOPs", l.gflops},
                           {"floor_us", l.floor_us},
                           {"of_floor", fraction}})
               .dump()
        << '\n';
    return;
  }
  out << std::fixed << std::setprecision(1) << "op=" << l.op << " variant=\"" << l.variant << "\" " << l.shape
      << " ok=" << l.ok << " MB=" << l.bytes * 1e-6 << " MFLOP=" << l.flops * 1e-6
      << " us_median=" << l.median_us << " us_best=" << l.best_us << " GBps=" << l.gbps
      << " GFLOPs=" << l.gflops << " floor_us=" << l.floor_us << std::setprecision(2)
      << " of_floor=" << fraction << std::endl;
}

}  // namespace

MachineRates measure_machine(DType dtype) {
  MachineRates rates;
  const std::int64_t n = std::int64_t{16} << 20;
  const Tensor from = Tensor::empty({n}, DType::f32), to = Tensor::empty({n}, DType::f32);
  from.fill(1);  // pages that nobody has written are all one page of zeros
  to.fill(0);
  const auto copies = time_calls([&] { to.copy_from(from); }, 5);
  rates.bytes_per_second = 2.0 * static_cast<double>(from.bytes()) / *std::ranges::min_element(copies);
  const std::int64_t m = 1024;
  Tensor a = Tensor::empty({m, m}, dtype), c = Tensor::empty({m, m}, dtype);
  fill_normal(a, RandomStream(1, "bench"), 0, 1);
  const auto products = time_calls(
      [&] {
        matmul({c, Into::set}, a, false, a, true);
      },
      dtype == DType::f64 ? 2 : 8);
  const auto cube = static_cast<double>(m) * static_cast<double>(m) * static_cast<double>(m);
  rates.flops_per_second = 2 * cube / *std::ranges::min_element(products);
  return rates;
}

bool bench_op(const BenchOpOptions& options, std::ostream& out) {
  const MachineRates rates = measure_machine(options.sizes.dtype);
  log_info("machine: copy ", rates.bytes_per_second * 1e-9, " GB/s, ", options.sizes.dtype, " products ",
           rates.flops_per_second * 1e-9, " GFLOP/s (both measured; the floor is made of them)");
  bool all_ok = true;
  int printed = 0;
  std::string known;
  for (const BenchEntry& entry : bench_entries()) {
    known += (known.empty() ? "" : ", ") + entry.op;
    if (!options.op.empty() && entry.op != options.op) continue;
    for (const BenchCase& c : entry.make(options.sizes)) {
      if (options.variant != "all" && c.variant.find(options.variant) == std::string::npos) continue;
      c.run();
      Line line{entry.op, c.variant, c.shape, !c.verify || c.verify(), c.bytes, c.flops};
      const auto seconds = time_calls(c.run, options.repeats);
      const double typical = median(seconds);
      line.median_us = typical * 1e6;
      line.best_us = *std::ranges::min_element(seconds) * 1e6;
      line.floor_us = std::max(c.bytes / rates.bytes_per_second, c.flops / rates.flops_per_second) * 1e6;
      line.gbps = c.bytes / typical * 1e-9;
      line.gflops = c.flops / typical * 1e-9;
      print(line, options.json, out);
      all_ok = all_ok && line.ok;
      ++printed;
    }
  }
  require(printed > 0, "bench op: nothing matches --op '", options.op, "' --variant '", options.variant,
          "' (operations: ", known, ")");
  return all_ok;
}

}  // namespace nemocube
