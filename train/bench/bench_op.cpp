#include "train/bench/bench_op.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <sstream>
#include <vector>

#include "core/kernel.h"
#include "core/log.h"
#include "core/parallel_for.h"
#include "core/tensor.h"
#include "train/bench/bench_cuda.h"
#include "train/bench/kernel_counters.h"
#include "train/bench/timing.h"

namespace nemocube {
namespace {

struct Result {
  std::string op;
  const BenchCase* work;
  bool ok;
  double median, best;  // seconds
  Floor floor;
};

/// Writes more memory than the caches hold, with all threads, so that operands of the next call come from
/// memory.
class CacheFlush {
 public:
  explicit CacheFlush(const Machine& machine)
      : memory_(Tensor::empty({std::clamp(2 * machine.largest_cache(), least, most)}, DType::u8,
                              Device::cpu)) {}  // caches of the CPU
  void operator()() {
    const int value = ++count_ % 256;
    auto* bytes = memory_.host_bytes();
    parallel_for(memory_.bytes(), 1, [=](std::int64_t begin, std::int64_t end) {
      std::memset(bytes + begin, value, static_cast<std::size_t>(end - begin));
    });
  }

 private:
  static constexpr std::int64_t least = std::int64_t{64} << 20, most = std::int64_t{1} << 30;
  Tensor memory_;
  int count_ = 0;
};

nlohmann::json to_json(const Rates& rates) {
  nlohmann::json list = nlohmann::json::array();
  for (const Bandwidth& b : rates.bandwidth)
    list.push_back({{"bytes", b.bytes}, {"GBps", b.bytes_per_second * 1e-9}});
  return {{"bandwidth", list}, {"product_GFLOPs", rates.flops_per_second * 1e-9}};
}

/// "L1 310 GB/s, L2 120 GB/s, DRAM 18 GB/s": for each level the largest size measured that it holds.
std::string describe(const Rates& rates, const Machine& machine) {
  std::ostringstream text;
  text << std::setprecision(3);
  for (std::size_t i = 0; i < rates.bandwidth.size(); ++i) {
    const std::string level = machine.level_of(rates.bandwidth[i].bytes);
    const bool last = i + 1 == rates.bandwidth.size();
    if (last || machine.level_of(rates.bandwidth[i + 1].bytes) != level)
      text << level << ' ' << rates.bandwidth[i].bytes_per_second * 1e-9 << " GB/s, ";
  }
  text << "products " << rates.flops_per_second * 1e-9 << " GFLOP/s";
  return text.str();
}

class Report {
 public:
  Report(const BenchOpOptions& options, std::ostream& out) : options_(options), out_(out) {}

  void start(const Machine& machine, const Rates& rates) const {
    if (options_.json) {
      out_ << nlohmann::json({{"machine", nemocube::to_json(machine)}, {"rates", to_json(rates)}}).dump()
           << std::endl;
      return;
    }
    out_ << "machine: " << to_string(machine) << "\nmeasured: " << describe(rates, machine)
         << "\ndtype: " << options_.sizes.dtype << (options_.cold ? ", cold caches" : "") << "\n\n"
         << bench_op_legend() << '\n';
    row("op", "variant", "MB", "us", "best us", "GB/s", "GFLOP/s", "floor us", "of floor", "bound", "ok",
        "shape");
    out_ << std::flush;
  }

  void add(const Result& r) const {
    const BenchCase& c = *r.work;
    if (options_.json) {
      nlohmann::ordered_json shape = nlohmann::ordered_json::object();
      for (const auto& [name, size] : c.shape) shape[name] = size;
      nlohmann::ordered_json line{
          {"op", r.op},
          {"variant", c.variant},
          {"shape", shape},
          {"dtype", name_of(options_.sizes.dtype)},
          {"cold", options_.cold},
          {"repeats", options_.repeats},
          {"ok", options_.verify ? nlohmann::ordered_json(r.ok) : nlohmann::ordered_json(nullptr)},
          {"bytes", c.bytes},
          {"flops", c.flops},
          {"us_median", r.median * 1e6},
          {"us_best", r.best * 1e6},
          {"GBps", c.bytes / r.median * 1e-9},
          {"GFLOPs", nullptr},
          {"floor_us", r.floor.seconds * 1e6},
          {"of_floor", r.floor.seconds / r.median},
          {"bound", r.floor.bound}};
      if (c.flops > 0) line["GFLOPs"] = c.flops / r.median * 1e-9;
      out_ << line.dump() << std::endl;
      return;
    }
    std::string shape;
    for (const auto& [name, size] : c.shape) shape += cat(shape.empty() ? "" : " ", name, "=", size);
    row(r.op, c.variant, number(c.bytes * 1e-6), number(r.median * 1e6), number(r.best * 1e6),
        number(c.bytes / r.median * 1e-9), c.flops > 0 ? number(c.flops / r.median * 1e-9) : "-",
        number(r.floor.seconds * 1e6), cat(std::llround(100 * r.floor.seconds / r.median), "%"),
        r.floor.bound,
        !options_.verify ? "-"
        : r.ok           ? "yes"
                         : "NO",
        shape);
    out_ << std::flush;
  }

 private:
  /// Four digits, or all before the point.
  static std::string number(double value) {
    std::ostringstream text;
    text << std::fixed
         << std::setprecision(value >= 1000  ? 0
                              : value >= 100 ? 1
                              : value >= 10  ? 2
                                             : 3)
         << value;
    return text.str();
  }

  void row(const std::string& op, const std::string& variant, const std::string& mb, const std::string& us,
           const std::string& best, const std::string& gbps, const std::string& gflops,
           const std::string& floor, const std::string& of_floor, const std::string& bound,
           const std::string& ok, const std::string& shape) const {
    out_ << std::left << std::setw(15) << op << ' ' << std::setw(28) << variant << std::right;
    for (const std::string* text : {&mb, &us, &best, &gbps, &gflops, &floor, &of_floor})
      out_ << ' ' << std::setw(9) << *text;
    out_ << "  " << std::left << std::setw(8) << bound << ' ' << std::setw(3) << ok << ' ' << shape
         << std::right << '\n';
  }

  const BenchOpOptions& options_;
  std::ostream& out_;
};

bool selected(const std::string& variant, const BenchOpOptions& options) {
  return options.variant == "all" || variant.find(options.variant) != std::string::npos;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "; ") + name;
  return text;
}

/// Entries that have a selected case, found on small sizes before anything large is made.
std::vector<const BenchEntry*> select(const BenchOpOptions& options) {
  std::vector<const BenchEntry*> chosen;
  std::vector<std::string> ops, variants;
  for (const BenchEntry& entry : bench_entries()) {
    ops.push_back(entry.op);
    if (!options.op.empty() && entry.op != options.op) continue;
    bool some = false;
    if (options.sizes.device.is_cuda() && !runs_on_cuda(entry.op)) continue;
    for (const BenchCase& c : entry.make({options.sizes.dtype, true})) {
      some = some || selected(c.variant, options);
      const std::string name = options.op.empty() ? entry.op + ": " + c.variant : c.variant;
      if (std::ranges::find(variants, name) == variants.end()) variants.push_back(name);
    }
    if (some) chosen.push_back(&entry);
  }
  require(options.op.empty() || std::ranges::find(ops, options.op) != ops.end(), "bench op: no operation '",
          options.op, "' (there are: ", join(ops), ")");
  require(!chosen.empty(), "bench op: no variant", options.op.empty() ? "" : " of " + options.op,
          " contains '", options.variant, "' (there are: ", join(variants), ")");
  return chosen;
}

}  // namespace

std::string_view bench_op_legend() {
  return R"(MB        least memory traffic by the operation's contract: each operand once
us        time of a call: median of the repeats; best us: the shortest
GB/s      MB over the median
GFLOP/s   floating-point operations of the matrix products over the median; "-": there are none
floor us  the least time this machine allows: the larger of MB over the bandwidth measured for as many
          bytes and of the matrix products' operations over the rate of large products
of floor  floor us over the median; 100% cannot be beaten, but for noise
bound     what sets the floor: the nearest memory that holds so many bytes (L1, L2, .., DRAM), or products.
          Operands stay in caches between repeats; with --cold they come from DRAM every time
ok        the result agrees with the definition or with another variant
)";
}

Floor floor_of(double bytes, double flops, const Rates& rates, const Machine& machine, bool cold) {
  const auto moved = static_cast<std::int64_t>(bytes);
  const double memory = bytes / (cold ? rates.dram_bytes_per_second() : rates.bytes_per_second(moved));
  const double products = flops / rates.flops_per_second;
  if (products > memory) return {products, "products"};
  return {memory, cold ? "DRAM" : machine.level_of(moved)};
}

std::vector<std::string_view> benched_operations(const std::string& op) {
  if (!op.empty()) return {op};
  std::vector<std::string_view> all;
  for (const BenchEntry& entry : bench_entries()) all.push_back(entry.op);
  return all;
}

namespace {

bool bench_on_cuda(const BenchOpOptions& options, const std::vector<const BenchEntry*>& entries,
                   std::ostream& out) {
  const bool counted = kernel_counters_file().has_value();
  require(!options.cold || !counted, "bench op: --cold is for times, and a device in software has none");
  BenchCudaOptions cuda_options{options.sizes, options.repeats,  options.cold, options.verify,
                                options.json,  options.markdown, options.cases};
  cuda_options.sizes.emulated = counted;
  BenchCuda bench(cuda_options, out);
  for (const BenchEntry* entry : entries)
    for (const BenchCase& c : entry->make(cuda_options.sizes))
      if (selected(c.variant, options)) bench.run({entry->op, c});
  return bench.all_ok();
}

}  // namespace

bool bench_op(const BenchOpOptions& options, std::ostream& out) {
  const std::vector<const BenchEntry*> entries = select(options);
  if (options.sizes.device.is_cuda()) return bench_on_cuda(options, entries, out);
  require(!options.sizes.nano && !options.markdown, "bench op: --nano and --markdown are for --device cuda");
  const Machine machine = describe_machine();
  log_info("bench op: measuring bandwidth and products");
  const Rates rates = measure_rates(machine, options.sizes.dtype, options.sizes.small);
  std::optional<CacheFlush> flush;
  if (options.cold) flush.emplace(machine);
  const Report report(options, out);
  report.start(machine, rates);
  bool all_ok = true;
  for (const BenchEntry* entry : entries)
    for (const BenchCase& c : entry->make(options.sizes)) {
      if (!selected(c.variant, options)) continue;
      c.run();
      const bool ok = !options.verify || c.verify();
      std::vector<double> seconds;
      for (int i = 0; i < options.repeats; ++i) {
        if (flush) (*flush)();
        seconds.push_back(seconds_of(c.run));
      }
      report.add({entry->op, &c, ok, median(seconds), *std::ranges::min_element(seconds),
                  floor_of(c.bytes, c.flops, rates, machine, options.cold)});
      all_ok = all_ok && ok;
    }
  return all_ok;
}

}  // namespace nemocube
