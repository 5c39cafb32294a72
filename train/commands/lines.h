#pragma once
#include <filesystem>
#include <functional>
#include <string>

namespace nemocube {

/// Calls `fn` with each line of a file, without its line feed; `-` is standard input. Throws Error naming the
/// file when it cannot be read to its end; Errors of `fn` get file and line in front.
void for_each_line(const std::filesystem::path& path, const std::function<void(const std::string&)>& fn);

}  // namespace nemocube
