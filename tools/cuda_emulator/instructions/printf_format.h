#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace emulator {

/// Where the arguments of a device printf come from.
struct PrintfArguments {
  /// Copies bytes of the argument buffer; false when they lie outside of memory the thread may read.
  std::function<bool(std::size_t offset, void* to, std::size_t bytes)> buffer;
  /// The zero-terminated string at a generic address; nullopt when there is none.
  std::function<std::optional<std::string>(std::uint64_t address)> string;
};

/// Formats as printf of C does. The buffer holds the arguments one behind the other after C's default promotions, each at
/// its natural alignment. nullopt: the format names a conversion that printf of devices does not know, or an argument
/// cannot be read. (CUDA C++ Programming Guide, "Formatted Output".)
std::optional<std::string> format_printf(std::string_view format, const PrintfArguments& arguments,
                                         std::size_t& argument_count);

}  // namespace emulator
