#pragma once
#include <filesystem>
#include <string>

namespace nemocube::testing {

/// Writes a shell script, without its first line "#!/bin/sh", that the owner may run; makes its folder.
void write_script(const std::filesystem::path& file, const std::string& text);

}  // namespace nemocube::testing
