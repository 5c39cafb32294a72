#include "core/module_file.h"

#include <system_error>

#include "core/error.h"

namespace nemocube {

std::filesystem::path module_file(std::string_view name) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path installed = (folder / "../lib/nemocube").lexically_normal();
  for (const std::filesystem::path& place : {folder, installed}) {
    std::error_code error;
    if (std::filesystem::exists(place / name, error)) return place / name;
  }
  fail("the module ", name, " is neither in ", folder.string(), " nor in ", installed.string());
}

}  // namespace nemocube
