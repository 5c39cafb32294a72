#include "train/cost/gpu_rates.h"

#include "core/error.h"

namespace nemocube {

GpuRates gpu_rates(const std::string& name) {
  GpuRates rates;
  if (name == "h200" || name == "h200-141") {
    rates.dram_bytes = 4.8e12;
    rates.memory_bytes = std::int64_t{139} << 30;
  } else {
    require(name == "h100" || name == "h100-80", "no rates are known of a GPU '", name,
            "': want h100 (or h100-80) or h200 (or h200-141)");
  }
  return rates;
}

}  // namespace nemocube
