#include "train/bench/kernel_counters.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/environment.h"
#include "core/error.h"

namespace nemocube {

std::optional<std::filesystem::path> kernel_counters_file() {
  const char* file = environment_variable("CUDA_EMULATOR_COUNTERS");
  if (!file || !*file) return std::nullopt;
  return file;
}

KernelCounters read_kernel_counters(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return parse_kernel_counters(text.view(), file.string());
}

namespace {

KernelCount count_of(const nlohmann::json& kernel) {
  const auto number = [&](const char* key) { return kernel.at(key).get<std::int64_t>(); };
  KernelCount k{.name = kernel.at("name").get<std::string>(),
                .launches = number("launches"),
                .blocks = number("blocks"),
                .resident_blocks = number("resident_blocks"),
                .dram_bytes = number("dram_bytes"),
                .global_bytes = number("global_bytes"),
                .sectors = number("sectors"),
                .wavefronts = number("shared_wavefronts"),
                .ideal_wavefronts = number("shared_wavefronts_ideal"),
                .warp_instructions = number("warp_instructions"),
                .multiply_adds = number("multiply_adds"),
                .mma_multiply_adds = number("mma_multiply_adds"),
                .spill_bytes = {},
                .registers = {},
                .occupancy = kernel.at("occupancy").get<double>()};
  // Null where the emulator found no ptxas.
  if (!kernel.at("registers").is_null() && !kernel.at("spill_bytes").is_null()) {
    k.registers = number("registers");
    k.spill_bytes = number("spill_bytes");
  }
  return k;
}

}  // namespace

KernelCounters parse_kernel_counters(std::string_view text, const std::string& name) {
  KernelCounters sum;
  try {
    const nlohmann::json all = nlohmann::json::parse(text);
    for (const auto& kernel : all.at("kernels")) sum.kernels.push_back(count_of(kernel));
  } catch (const nlohmann::json::exception& error) {
    fail(name, ": not counters of the CUDA emulator: ", error.what());
  }
  for (const KernelCount& k : sum.kernels) {
    sum.launches += k.launches;
    sum.dram_bytes += k.dram_bytes;
    sum.global_bytes += k.global_bytes;
    sum.sectors += k.sectors;
    sum.bank_conflicts += k.wavefronts - k.ideal_wavefronts;
    if (!sum.registers || !k.registers) {
      sum.registers = sum.spill_bytes = std::nullopt;
    } else {
      *sum.spill_bytes += *k.spill_bytes;
      sum.registers = std::max(*sum.registers, *k.registers);
    }
    sum.occupancy = std::min(sum.occupancy, k.occupancy);
  }
  return sum;
}

}  // namespace nemocube
