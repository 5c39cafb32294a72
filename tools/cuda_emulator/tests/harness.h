#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "instructions/module.h"
#include "machine/launch.h"

/// Runs kernels written as PTX text without a CUDA program around them, for tests of instructions and checks.
namespace emulator::test {

/// Device memory that is freed with the object.
class Buffer {
 public:
  explicit Buffer(std::uint64_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  std::uint64_t address() const { return allocation_->begin; }
  /// Copies to and from the host (marks bytes written).
  void write(const void* data, std::uint64_t bytes, std::uint64_t offset = 0);
  void read(void* data, std::uint64_t bytes, std::uint64_t offset = 0) const;
  template <class T>
  std::vector<T> values(std::size_t count) const {
    std::vector<T> out(count);
    read(out.data(), count * sizeof(T));
    return out;
  }

 private:
  Allocation* allocation_;
};

/// Appends values to a parameter block at their natural alignment.
class Arguments {
 public:
  template <class T>
  Arguments& add(T value) {
    bytes_.resize((bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T));
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  std::vector<std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Runs the only kernel of a PTX module (or the named one); returns 0 or the cudaError of a fault.
int run(Module& module, const LaunchShape& shape, const Arguments& arguments, const std::string& kernel = "",
        std::uint64_t seed = 1);

/// "0x%p" free text of a module with one kernel `k` that takes `parameters` .u64 addresses named p0, p1 .. loaded into %p0.. (global
/// addresses) and then runs `body`; %t is the thread's index in the grid (u32), %t64 the same as u64.
/// Registers: .reg .b64 %rd<100>, .b32 %r<100>, .f32 %f<100>, .f64 %fd<100>, .b16 %h<100>, .pred %q<20>.
std::string kernel_text(int parameters, const std::string& body, const std::string& declarations = "");

/// Reports made since the last call (their kinds), errors, warnings and notes alike.
std::vector<std::string> take_reports();

}  // namespace emulator::test
