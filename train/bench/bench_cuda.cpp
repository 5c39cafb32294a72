#include "train/bench/bench_cuda.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "core/cuda/runtime.h"
#include "train/bench/counted_cases.h"
#include "train/bench/kernel_counters.h"
#include "train/bench/kernel_report.h"
#include "train/bench/timing.h"

namespace nemocube {
namespace {

std::string number(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string shape_text(const BenchShape& shape) {
  std::string text;
  for (const auto& [name, size] : shape) text += cat(text.empty() ? "" : " ", name, "=", size);
  return text;
}

void print_row(std::ostream& out, const std::string& op, const std::string& variant,
               const std::vector<std::string>& columns, const std::string& ok, const std::string& shape) {
  out << std::left << std::setw(10) << op << ' ' << std::setw(26) << variant << std::right;
  for (const std::string& text : columns) out << ' ' << std::setw(9) << text;
  out << "  " << std::left << std::setw(3) << ok << ' ' << shape << std::right << std::endl;
}

nlohmann::ordered_json or_null(std::optional<std::int64_t> value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}
std::string or_unknown(std::optional<std::int64_t> value) { return value ? cat(*value) : "?"; }

nlohmann::ordered_json case_json(const NamedCase& c, bool ok, const BenchOptions& sizes) {
  nlohmann::ordered_json shape = nlohmann::ordered_json::object();
  for (const auto& [name, size] : c.work.shape) shape[name] = size;
  return {{"op", c.op},           {"variant", c.work.variant},
          {"shape", shape},       {"dtype", name_of(sizes.dtype)},
          {"device", "cuda"},     {"ok", ok},
          {"bytes", c.work.bytes}};
}

/// Of one call.
KernelCounters counters_of(const BenchCase& work) {
  cuda::synchronize();
  cuda::start_profiler();
  work.run();
  cuda::synchronize();
  cuda::stop_profiler();
  return read_kernel_counters(*kernel_counters_file());
}

}  // namespace

std::string_view bench_cuda_legend(bool counted) {
  return counted ? R"(Under tools/cuda_emulator/run --counters, counted in one call:
MB        least memory traffic by the operation's contract: each operand once
DRAM MB   traffic between a modelled L2 and memory; of MB: DRAM MB over MB
conflicts wavefronts of shared memory beyond those without bank conflicts
spilled   bytes of spilled registers; registers: of a thread; "?" without ptxas; occupancy: the least of
          the kernels
)"
                 : R"(On a CUDA device:
MB        least memory traffic by the operation's contract: each operand once
us        time of a call: median of the repeats; best us: the shortest; GB/s: MB over the median
)";
}

BenchCuda::BenchCuda(const BenchCudaOptions& options, std::ostream& out) : options_(options), out_(out) {
  require(!options_.markdown || kernel_counters_file(),
          "bench op: --markdown prints what tools/cuda_emulator/run --counters FILE counts");
  require(options_.cases.empty() || options_.markdown, "bench op: --cases goes with --markdown");
  if (options_.markdown) return;
  const cuda::DeviceDescription device = cuda::describe_device();
  if (options_.json) {
    out_ << nlohmann::json({{"device",
                             {{"name", device.name},
                              {"compute_capability", cat(device.major, ".", device.minor)},
                              {"multiprocessors", device.multiprocessors},
                              {"memory", device.memory_bytes},
                              {"l2", device.l2_bytes}}}})
                .dump()
         << std::endl;
    return;
  }
  const bool counted = kernel_counters_file().has_value();
  out_ << "device: " << device.name << ", compute capability " << device.major << '.' << device.minor << ", "
       << device.multiprocessors << " multiprocessors, L2 " << (device.l2_bytes >> 20)
       << " MiB\ndtype: " << options_.sizes.dtype << "\n\n"
       << bench_cuda_legend(counted) << '\n';
  if (counted)
    print_row(out_, "op", "variant",
              {"MB", "DRAM MB", "of MB", "launches", "conflicts", "spilled", "registers", "occupancy"}, "ok",
              "shape");
  else
    print_row(out_, "op", "variant", {"MB", "us", "best us", "GB/s"}, "ok", "shape");
}

void BenchCuda::run(const NamedCase& c) {
  if (options_.markdown) return report(c);
  c.work.run();
  const bool ok = c.work.verify();
  all_ok_ = all_ok_ && ok;
  kernel_counters_file() ? count(c, ok) : time(c, ok);
}

void BenchCuda::report(const NamedCase& c) {
  c.work.run();  // the first call fills gradients with zeros
  const KernelCounters counted = counters_of(c.work);
  out_ << kernel_report(c.op, c.work, counted) << std::flush;
  if (!options_.cases.empty()) append_counted_case(options_.cases, counted_case(c.op, c.work, counted));
}

void BenchCuda::count(const NamedCase& c, bool ok) {
  const KernelCounters k = counters_of(c.work);
  const double dram = static_cast<double>(k.dram_bytes), ratio = dram / c.work.bytes;
  if (options_.json) {
    nlohmann::ordered_json line = case_json(c, ok, options_.sizes);
    line.update({{"dram_bytes", k.dram_bytes},
                 {"of_bytes", ratio},
                 {"launches", k.launches},
                 {"global_bytes", k.global_bytes},
                 {"sectors", k.sectors},
                 {"bank_conflicts", k.bank_conflicts},
                 {"spill_bytes", or_null(k.spill_bytes)},
                 {"registers", or_null(k.registers)},
                 {"occupancy", k.occupancy}});
    out_ << line.dump() << std::endl;
    return;
  }
  print_row(
      out_, c.op, c.work.variant,
      {number(c.work.bytes * 1e-6, 3), number(dram * 1e-6, 3), number(ratio, 3), cat(k.launches),
       cat(k.bank_conflicts), or_unknown(k.spill_bytes), or_unknown(k.registers), number(k.occupancy, 2)},
      ok ? "yes" : "NO", shape_text(c.work.shape));
}

void BenchCuda::time(const NamedCase& c, bool ok) {
  // So many calls are timed together that launches and the wait at their end do not count.
  const auto seconds_of_calls = [&](int calls) {
    return seconds_of([&] {
      for (int i = 0; i < calls; ++i) c.work.run();
      cuda::synchronize();
    });
  };
  const int calls = std::clamp(static_cast<int>(0.01 / seconds_of_calls(1)), 1, 1000);
  std::vector<double> seconds;
  for (int i = 0; i < options_.repeats; ++i) seconds.push_back(seconds_of_calls(calls) / calls);
  const double middle = median(seconds), best = *std::ranges::min_element(seconds);
  if (options_.json) {
    nlohmann::ordered_json line = case_json(c, ok, options_.sizes);
    line.update({{"repeats", options_.repeats},
                 {"calls", calls},
                 {"us_median", middle * 1e6},
                 {"us_best", best * 1e6},
                 {"GBps", c.work.bytes / middle * 1e-9}});
    out_ << line.dump() << std::endl;
    return;
  }
  print_row(out_, c.op, c.work.variant,
            {number(c.work.bytes * 1e-6, 3), number(middle * 1e6, 2), number(best * 1e6, 2),
             number(c.work.bytes / middle * 1e-9, 1)},
            ok ? "yes" : "NO", shape_text(c.work.shape));
}

}  // namespace nemocube
