#include "core/device.h"

namespace nemocube {

std::string_view name_of(Device device) {
  switch (device) {
    case Device::cpu:
      return "cpu";
    case Device::cuda:
      return "cuda";
    case Device::meta:
      return "meta";
  }
  return "?";
}

}  // namespace nemocube
