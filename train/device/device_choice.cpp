#include "train/device/device_choice.h"

#include "core/error.h"
#include "core/kernel.h"
#include "core/log.h"
#include "train/optimizer/optimizer.h"

namespace nemocube {
namespace {

/// Why the operations cannot run on a CUDA device; empty when they can.
std::string obstacle(std::span<const std::string_view> operations) {
  if (!cuda::backend_missing().empty()) return cuda::backend_missing();
  std::string missing;
  for (const std::string_view op : operations)
    if (!runs_on_cuda(op)) missing += cat(missing.empty() ? "" : ", ", op);
  return missing.empty() ? cuda::unavailable() : "no CUDA kernels yet for " + missing;
}

}  // namespace

DeviceChoice parse_device(const std::string& text) {
  if (text == "cpu") return DeviceChoice::cpu;
  if (text == "cuda") return DeviceChoice::cuda;
  if (text == "auto") return DeviceChoice::automatic;
  fail("--device: want cpu, cuda or auto, got '", text, "'");
}

Device choose_device(DeviceChoice choice, std::span<const std::string_view> operations,
                     std::string_view asked) {
  if (choice == DeviceChoice::cpu) return Device::cpu;  // as asked
  const std::string reason = obstacle(operations);
  if (choice == DeviceChoice::cuda) {
    require(reason.empty(), asked, ": ", reason);
    return Device::cuda;
  }
  log_info("device auto: ", reason.empty() ? "cuda" : "cpu, because of: " + reason);
  return reason.empty() ? Device::cuda : Device::cpu;  // as found
}

std::vector<std::string_view> model_operations() {
  std::vector<std::string_view> all = operations();
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd})
    std::erase(all, operation_of(kind));
  return all;
}

std::vector<std::string_view> training_operations(std::string_view optimizer) {
  std::vector<std::string_view> all = model_operations();
  all.push_back(optimizer);
  return all;
}

}  // namespace nemocube
