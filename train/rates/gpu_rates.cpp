#include "train/rates/gpu_rates.h"

#include "core/error.h"

namespace nemocube {

GpuRates gpu_rates(const std::string& name) {
  GpuRates rates;
  if (name == "h200")
    rates.dram_bytes = 4.8e12;
  else
    require(name == "h100", "no rates are known of a GPU '", name, "': want h100 or h200");
  return rates;
}

}  // namespace nemocube
