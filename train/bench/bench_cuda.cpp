#include "train/bench/bench_cuda.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <sstream>

#include "core/cuda/runtime.h"
#include "core/profile.h"
#include "core/rng.h"
#include "ops/matmul/matmul.h"
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

nlohmann::ordered_json case_json(const NamedCase& c, std::optional<bool> ok, const BenchOptions& sizes) {
  nlohmann::ordered_json shape = nlohmann::ordered_json::object();
  for (const auto& [name, size] : c.work.shape) shape[name] = size;
  return {{"op", c.op},           {"variant", c.work.variant},
          {"shape", shape},       {"dtype", name_of(sizes.dtype)},
          {"device", "cuda"},     {"ok", ok ? nlohmann::ordered_json(*ok) : nlohmann::ordered_json(nullptr)},
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

/// Of what `work` queues, by events of the device.
double device_seconds(const std::function<void()>& work) {
  static Zone zone("bench/call");
  reset_zones();
  {
    const ZoneTimer timer(zone);
    work();
  }
  return zone_totals().at(zone.name()).seconds;
}

}  // namespace

CudaRates measure_cuda_rates(DType dtype, bool small) {
  const auto best_seconds = [](const std::function<void()>& work) {
    work();
    double best = device_seconds(work);
    for (int i = 0; i < 9; ++i) best = std::min(best, device_seconds(work));
    return best;
  };
  cuda::time_zones(true);
  const std::int64_t bytes = std::int64_t{1} << (small ? 20 : 30), side = small ? 512 : 8192;
  const Tensor from = Tensor::zeros({bytes}, DType::u8, Device::cuda), to = from.clone();
  // Random values: products of zeros are faster, because they take less power.
  const Tensor a = Tensor::empty({side, side}, dtype, Device::cpu);  // drawn on the host
  fill_normal(a, RandomStream(1, "bench/product"), 0, 1);
  const Tensor on_device = a.to(Device::cuda), product = Tensor::empty(a.shape(), dtype, Device::cuda);
  CudaRates rates;
  rates.bytes_per_second = 2 * static_cast<double>(bytes) / best_seconds([&] { to.copy_from(from); });
  const double n = static_cast<double>(side);
  rates.flops_per_second = 2 * n * n * n / best_seconds([&] {
                             matmul({product, Into::set}, on_device, false, on_device, true);
                           });
  return rates;
}

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
us        time of a call: median of the repeats; best us: the shortest
GB/s      MB over the median
TFLOP/s   floating-point operations of the matrix products over the median; "-": there are none
floor us  the larger of MB over the rate of a large copy and of the operations over the rate of a large product
of floor  floor us over the median. Operands that fit stay in the L2 between calls, so that it can pass 100%;
          with --cold they come from memory every time
)";
}

BenchCuda::BenchCuda(const BenchCudaOptions& options, std::ostream& out) : options_(options), out_(out) {
  require(!options_.markdown || kernel_counters_file(),
          "bench op: --markdown prints what tools/cuda_emulator/run --counters FILE counts");
  require(options_.cases.empty() || options_.markdown, "bench op: --cases goes with --markdown");
  if (options_.markdown) return;
  const cuda::DeviceDescription device = cuda::describe_device();
  const bool counted = kernel_counters_file().has_value();
  if (!counted) {
    rates_ = measure_cuda_rates(options_.sizes.dtype, options_.sizes.small);
    if (options_.cold) flush_ = Tensor::empty({4 * device.l2_bytes}, DType::u8, Device::cuda);
  }
  if (options_.json) {
    nlohmann::json line{{"device",
                         {{"name", device.name},
                          {"compute_capability", cat(device.major, ".", device.minor)},
                          {"multiprocessors", device.multiprocessors},
                          {"memory", device.memory_bytes},
                          {"l2", device.l2_bytes}}}};
    if (!counted)
      line["rates"] = {{"GBps", rates_.bytes_per_second * 1e-9},
                       {"product_TFLOPs", rates_.flops_per_second * 1e-12}};
    out_ << line.dump() << std::endl;
    return;
  }
  out_ << "device: " << device.name << ", compute capability " << device.major << '.' << device.minor << ", "
       << device.multiprocessors << " multiprocessors, L2 " << (device.l2_bytes >> 20) << " MiB\n";
  if (!counted)
    out_ << "measured: memory " << number(rates_.bytes_per_second * 1e-9, 0) << " GB/s, products "
         << number(rates_.flops_per_second * 1e-12, 1) << " TFLOP/s\n";
  out_ << "dtype: " << options_.sizes.dtype << (options_.cold ? ", cold L2" : "") << "\n\n"
       << bench_cuda_legend(counted) << '\n';
  if (counted)
    print_row(out_, "op", "variant",
              {"MB", "DRAM MB", "of MB", "launches", "conflicts", "spilled", "registers", "occupancy"}, "ok",
              "shape");
  else
    print_row(out_, "op", "variant", {"MB", "us", "best us", "GB/s", "TFLOP/s", "floor us", "of floor"}, "ok",
              "shape");
}

void BenchCuda::run(const NamedCase& c) {
  if (options_.markdown) return report(c);
  c.work.run();
  const bool ok = !options_.verify || c.work.verify();
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

std::vector<double> BenchCuda::seconds_of_calls(const BenchCase& work) {
  std::vector<double> seconds;
  if (options_.cold) {
    cuda::time_zones(true);
    for (int i = 0; i < options_.repeats; ++i) {
      flush_.fill(i);  // long enough that the host has queued the call before the device begins it
      seconds.push_back(device_seconds(work.run));
    }
    return seconds;
  }
  // So many calls are timed together that launches and the wait at their end do not count.
  const auto seconds_of_some = [&](int calls) {
    return seconds_of([&] {
      for (int i = 0; i < calls; ++i) work.run();
      cuda::synchronize();
    });
  };
  const int calls = std::clamp(static_cast<int>(0.01 / seconds_of_some(1)), 1, 1000);
  for (int i = 0; i < options_.repeats; ++i) seconds.push_back(seconds_of_some(calls) / calls);
  return seconds;
}

void BenchCuda::time(const NamedCase& c, bool ok) {
  const std::vector<double> seconds = seconds_of_calls(c.work);
  const double middle = median(seconds), best = *std::ranges::min_element(seconds),
               floor =
                   std::max(c.work.bytes / rates_.bytes_per_second, c.work.flops / rates_.flops_per_second);
  if (options_.json) {
    nlohmann::ordered_json line =
        case_json(c, options_.verify ? std::optional(ok) : std::nullopt, options_.sizes);
    line.update({{"repeats", options_.repeats},
                 {"cold", options_.cold},
                 {"us_median", middle * 1e6},
                 {"us_best", best * 1e6},
                 {"GBps", c.work.bytes / middle * 1e-9},
                 {"TFLOPs", c.work.flops / middle * 1e-12},
                 {"floor_us", floor * 1e6},
                 {"of_floor", floor / middle}});
    out_ << line.dump() << std::endl;
    return;
  }
  print_row(out_, c.op, c.work.variant,
            {number(c.work.bytes * 1e-6, 3), number(middle * 1e6, 2), number(best * 1e6, 2),
             number(c.work.bytes / middle * 1e-9, 1),
             c.work.flops > 0 ? number(c.work.flops / middle * 1e-12, 1) : "-", number(floor * 1e6, 2),
             cat(std::llround(100 * floor / middle), "%")},
            !options_.verify ? "-"
            : ok             ? "yes"
                             : "NO",
            shape_text(c.work.shape));
}

}  // namespace nemocube
