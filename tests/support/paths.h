#pragma once
#include <filesystem>
#include <string>

/// Where the running test program is, and what lies around it. No path is compiled in, so that a compiler
/// cache serves clones in other folders. An error throws Error, which names the file and what it lacks. All
/// of these work in the initialisation of static objects too.
namespace nemocube::testing {

/// The build folder: that of the running program.
const std::filesystem::path& build_dir();

/// The repository that the build folder was configured for.
const std::filesystem::path& source_dir();
/// A file or folder of the repository.
std::string source_path(const std::string& name);

/// The program under test.
std::string program();

/// The mpirun that CMake found.
std::string mpirun_program();

/// The module made of tests/support/preload/NAME.cpp, for LD_PRELOAD.
std::string preload_library(const std::string& name);

}  // namespace nemocube::testing
