#include "core/device.h"

namespace nemocube {

std::string to_string(Device device) {
  switch (device.kind) {
    case Device::Kind::cpu:
      return "cpu";
    case Device::Kind::cuda:
      return device.index == 0 ? "cuda" : "cuda:" + std::to_string(device.index);
    case Device::Kind::meta:
      return "meta";
    case Device::Kind::guard:
      return "guard";
    case Device::Kind::planned:
      return "planned";
  }
  return "?";
}

}  // namespace nemocube
