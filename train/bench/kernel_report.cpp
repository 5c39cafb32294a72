#include "train/bench/kernel_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace nemocube {
namespace {

constexpr double least_bytes = 1e6;  ///< kernels that move less are held to no aim
constexpr double sector_bytes = 32;

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

/// As many digits as a figure of a table needs.
std::string figure(double value) {
  return value == 0 ? "0" : fixed(value, value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3);
}

std::string ratio(double part, double of) { return of > 0 ? fixed(part / of, 2) : "-"; }

double real(std::int64_t count) { return static_cast<double>(count); }

std::string text_or_unknown(std::optional<std::int64_t> value) { return value ? cat(*value) : "?"; }

/// "12.5" where the launches differ.
std::string blocks_of_launch(const KernelCount& k) {
  const double blocks = k.launches == 0 ? 0 : real(k.blocks) / real(k.launches);
  return fixed(blocks, blocks == std::floor(blocks) ? 0 : 1);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

/// Where the template arguments that begin at `open` end.
std::size_t closing(std::string_view name, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (depth == 0) return i;
  }
  return name.size();
}

}  // namespace

double busiest_share(const KernelCount& k, const GpuRates& rates) {
  if (k.blocks == 0) return 1;
  const double even = real(k.blocks) / real(k.launches) / rates.multiprocessors;
  return std::ceil(even) / even;
}

ModelledTime modelled_time(const KernelCount& k, Placement placement, const GpuRates& r) {
  const double share = placement == Placement::blocks ? busiest_share(k, r) : 1;
  const double clocks = r.multiprocessors * r.clock / share;
  const double shared = real(k.wavefronts) / clocks;
  const std::array<std::pair<double, const char*>, 6> times{
      {{real(k.dram_bytes) / r.dram_bytes, "DRAM"},
       {real(k.sectors) * sector_bytes / r.l2_bytes, "L2"},
       {2 * real(k.mma_multiply_adds) / r.tensor_flops * share, "tensor cores"},
       {2 * real(k.multiply_adds) / r.single_flops * share, "multiply-adds"},
       {shared, "shared"},
       {real(k.warp_instructions) / (r.warp_instructions * clocks), "issue"}}};
  const auto longest = std::ranges::max_element(times, {}, [](const auto& time) { return time.first; });
  return {longest->first, shared, longest->second};
}

double dram_aim(const std::string& op, const BenchCase& work, const GpuRates& rates) {
  if (op == "ssd_scan") return work.variant.find("backward") == std::string::npos ? 1.6 : 2.2;
  if (op == "attention") return 0;  // of the sequences that are cut short here, products take longer
  return work.flops / rates.tensor_flops > work.bytes / rates.dram_bytes ? 0 : 1.05;
}

std::vector<std::string> missed_aims(const std::string& op, const BenchCase& work,
                                     const KernelCounters& counted) {
  std::vector<std::string> missed;
  const double aim = dram_aim(op, work), moved = real(counted.dram_bytes) / work.bytes;
  // The aim is one of two digits.
  if (aim > 0 && real(counted.dram_bytes) >= least_bytes && moved >= aim + 0.005)
    missed.push_back(cat("DRAM ", fixed(moved, 2), " > ", fixed(aim, 2)));
  if (op == "attention" || op == "ssd_scan") {
    double matrix = 0, others = 0;
    for (const KernelCount& k : counted.kernels) {
      matrix += real(k.mma_multiply_adds);
      others += real(k.multiply_adds);
    }
    if (matrix + others > 0 && matrix < 0.95 * (matrix + others))
      missed.push_back(cat("on tensor cores ", fixed(100 * matrix / (matrix + others), 1), " % < 95 %"));
  }
  return missed;
}

std::vector<std::string> missed_aims(const KernelCount& k, bool memory_bound) {
  std::vector<std::string> missed;
  if (real(k.dram_bytes) < least_bytes) return missed;
  const double sectors = real(k.sectors) * sector_bytes;
  if (memory_bound && sectors >= 1.105 * real(k.global_bytes))
    missed.push_back(cat("sectors ", ratio(sectors, real(k.global_bytes)), " > 1.10"));
  const ModelledTime time = modelled_time(k);
  if (time.shared_seconds > 0.1 * time.seconds && real(k.wavefronts) >= 1.155 * real(k.ideal_wavefronts))
    missed.push_back(cat("wavefronts ", ratio(real(k.wavefronts), real(k.ideal_wavefronts)), " > 1.15"));
  if (k.spill_bytes.value_or(0) > 0) missed.push_back(cat("spills ", *k.spill_bytes, " bytes"));
  return missed;
}

std::string short_kernel_name(const std::string& name) {
  std::string text = name;
  for (const char* part : {"(anonymous namespace)::", "<unnamed>::"})
    for (std::size_t at; (at = text.find(part)) != std::string::npos;)
      text.erase(at, std::string_view(part).size());
  std::size_t end = std::min(text.find_first_of("<("), text.size());
  // The result stands before the last blank of what precedes the name, a namespace before its last colon.
  const std::size_t begin = text.find_last_of(" :", end);
  const std::size_t first = begin == std::string::npos ? 0 : begin + 1;
  std::string head = text.substr(first, end - first);
  if (end == text.size() || text[end] == '(') return head;
  std::string arguments = text.substr(end, closing(text, end) + 1 - end);
  for (const char* part : {"nemocube::cuda::", "nemocube::"})
    for (std::size_t at; (at = arguments.find(part)) != std::string::npos;)
      arguments.erase(at, std::string_view(part).size());
  return head + (arguments.size() <= 48 ? arguments : "<..>");
}

std::string kernel_row(const KernelCount& k, bool memory_bound) {
  const ModelledTime time = modelled_time(k);
  return cat("| `", short_kernel_name(k.name), "` | ", k.launches, " | ", blocks_of_launch(k), " | ",
             k.resident_blocks, " | ", figure(real(k.dram_bytes) * 1e-6), " | ",
             ratio(real(k.sectors) * sector_bytes, real(k.global_bytes)), " | ",
             figure(real(k.mma_multiply_adds) * 1e-6), " | ", figure(real(k.multiply_adds) * 1e-6), " | ",
             ratio(real(k.wavefronts), real(k.ideal_wavefronts)), " | ", text_or_unknown(k.registers), " | ",
             text_or_unknown(k.spill_bytes), " | ", fixed(k.occupancy, 2), " | ", figure(time.seconds * 1e6),
             " | ", time.bound, " | ", joined(missed_aims(k, memory_bound)), " |\n");
}

std::string kernel_report(const std::string& op, const BenchCase& work, const KernelCounters& counted) {
  std::string shape;
  for (const auto& [name, size] : work.shape) shape += cat(shape.empty() ? "" : ", ", name, " ", size);
  double matrix = 0, others = 0, seconds = 0;
  for (const KernelCount& k : counted.kernels) {
    matrix += real(k.mma_multiply_adds);
    others += real(k.multiply_adds);
    seconds += modelled_time(k).seconds;
  }
  const double aim = dram_aim(op, work);
  std::string text =
      cat("### ", op, ", ", work.variant, "\n\n", shape, ".\n", "Must move ", figure(work.bytes * 1e-6),
          " MB, moves ", figure(real(counted.dram_bytes) * 1e-6),
          " MB: ", ratio(real(counted.dram_bytes), work.bytes), " times",
          aim > 0 ? cat(" (aim ", fixed(aim, 2), ")") : std::string(" (no aim: operations take longer)"),
          ". Launches: ", counted.launches, ". Least time: ", figure(seconds * 1e6), " us.");
  if (matrix > 0)
    text += cat(" On tensor cores: ", fixed(100 * matrix / (matrix + others), 1), " % of multiply-adds.");
  if (const auto missed = missed_aims(op, work, counted); !missed.empty())
    text += cat("\n**Missed: ", joined(missed), ".**");
  text +=
      "\n\n| kernel | launches | blocks | resident | DRAM MB | sectors | tensor M | other M | wavefronts | "
      "registers | spilled | "
      "occupancy | us | bound | missed |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|---|\n";
  std::vector<KernelCount> kernels = counted.kernels;
  std::ranges::stable_sort(kernels, std::ranges::greater{},
                           [](const KernelCount& k) { return modelled_time(k).seconds; });
  for (const KernelCount& k : kernels) text += kernel_row(k, aim > 0);
  return text + "\n";
}

}  // namespace nemocube
