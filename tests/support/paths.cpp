#include "tests/support/paths.h"

#include <fstream>

#include "core/error.h"

namespace nemocube::testing {
namespace {

namespace fs = std::filesystem;

/// The value of an entry KEY:TYPE=VALUE of the build folder's CMakeCache.txt.
std::string cmake_cache(const std::string& key) {
  const fs::path path = build_dir() / "CMakeCache.txt";
  std::ifstream in(path);
  require(in.good(), path.string(), ": cannot open; a test program finds ", key, " there, beside itself");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":"))
      if (const std::size_t equals = line.find('='); equals != line.npos) return line.substr(equals + 1);
  fail(path.string(), ": has no ", key);
}

}  // namespace

const fs::path& build_dir() {
  // Not canonical(), which would need the file: a build may replace it while it runs.
  static const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  return folder;
}

const fs::path& source_dir() {
  static const fs::path folder = cmake_cache("CMAKE_HOME_DIRECTORY");
  return folder;
}

std::string source_path(const std::string& name) { return (source_dir() / name).string(); }

std::string program() { return (build_dir() / "nemocube").string(); }

std::string mpirun_program() {
  static const std::string path = cmake_cache("MPIEXEC_EXECUTABLE");
  return path;
}

std::string preload_library(const std::string& name) {
  return (build_dir() / "tests" / ("lib" + name + ".so")).string();
}

}  // namespace nemocube::testing
