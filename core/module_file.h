#pragma once
#include <filesystem>
#include <string_view>

namespace nemocube {

/// Path of a module of this program (a shared library that is loaded at its first use): beside the program,
/// as built, or where `make install` puts modules. Throws Error when the file is in neither place.
std::filesystem::path module_file(std::string_view name);

}  // namespace nemocube
