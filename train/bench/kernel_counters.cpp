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

KernelCounters parse_kernel_counters(std::string_view text, const std::string& name) {
  KernelCounters sum;
  try {
    const nlohmann::json all = nlohmann::json::parse(text);
    for (const auto& kernel : all.at("kernels")) {
      const auto number = [&](const char* key) { return kernel.at(key).get<std::int64_t>(); };
      sum.launches += number("launches");
      sum.dram_bytes += number("dram_bytes");
      sum.global_bytes += number("global_bytes");
      sum.sectors += number("sectors");
      sum.bank_conflicts += number("shared_wavefronts") - number("shared_wavefronts_ideal");
      // Null where the emulator found no ptxas.
      if (!sum.registers || kernel.at("registers").is_null() || kernel.at("spill_bytes").is_null()) {
        sum.registers = sum.spill_bytes = std::nullopt;
      } else {
        *sum.spill_bytes += number("spill_bytes");
        sum.registers = std::max(*sum.registers, number("registers"));
      }
      sum.occupancy = std::min(sum.occupancy, kernel.at("occupancy").get<double>());
    }
  } catch (const nlohmann::json::exception& error) {
    fail(name, ": not counters of the CUDA emulator: ", error.what());
  }
  return sum;
}

}  // namespace nemocube
