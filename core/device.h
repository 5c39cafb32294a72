#pragma once
#include <cstdint>
#include <ostream>
#include <string_view>

namespace nemocube {

/// Where the memory of a tensor lies. A tensor on Device::meta has a shape and no memory.
enum class Device : std::uint8_t { cpu, cuda, meta };
std::string_view name_of(Device device);
inline std::ostream& operator<<(std::ostream& out, Device device) { return out << name_of(device); }

}  // namespace nemocube
