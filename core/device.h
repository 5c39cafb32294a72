#pragma once
#include <cstdint>
#include <ostream>
#include <string>

namespace nemocube {

/// Where the memory of a tensor lies, and which kernels compute with it.
struct Device {
  enum class Kind : std::uint8_t {
    cpu,     ///< host memory
    cuda,    ///< a CUDA device
    meta,    ///< none: a tensor has a shape and no memory
    guard,   ///< host memory that only kernels may touch (core/guard_device.h): a device for tests
    planned  ///< memory is counted as on a CUDA device, nothing is computed (core/planned_device.h)
  };
  Kind kind = Kind::cpu;
  std::int8_t index = 0;  ///< of a CUDA device, among those that the process sees

  static const Device cpu, cuda, meta, guard, planned;
  static constexpr Device cuda_number(int index) { return {Kind::cuda, static_cast<std::int8_t>(index)}; }

  friend bool operator==(const Device&, const Device&) = default;
  bool is_cuda() const { return kind == Kind::cuda; }
  bool is_planned() const { return kind == Kind::planned; }
  bool is_meta() const { return kind == Kind::meta; }
  bool is_guard() const { return kind == Kind::guard; }
  /// Whether host code may use the addresses of its memory.
  bool is_host() const { return kind == Kind::cpu; }
};
inline constexpr Device Device::cpu{Kind::cpu}, Device::cuda{Kind::cuda}, Device::meta{Kind::meta},
    Device::guard{Kind::guard}, Device::planned{Kind::planned};

std::string to_string(Device device);  ///< "cpu", "cuda" for the first CUDA device, "cuda:1" for the next
inline std::ostream& operator<<(std::ostream& out, Device device) { return out << to_string(device); }

}  // namespace nemocube
