#pragma once
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "core/cuda/module.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

/// Whole runs of the program on a CUDA device, for tests of doctest's suite "cuda". A test process that has a
/// device itself starts them as they are; elsewhere they run on the software GPU of this build.
namespace nemocube::testing {

inline std::filesystem::path emulator_libraries() { return build_dir() / "cuda_emulator"; }

/// Whether there is a device of either kind. The first call that finds none prints why tests are left out;
/// with NEMOCUBE_TEST_CUDA=required in the environment it ends the process as failed.
inline bool has_cuda_for_programs() {
  static const bool has = [] {
    std::string reason = cuda::backend_missing();
    if (reason.empty() && !cuda::unavailable().empty() &&
        !std::filesystem::exists(emulator_libraries() / "libcudart.so.13"))
      reason = cuda::unavailable() + ", and make emulator has not run";
    if (reason.empty()) return true;
    const char* wanted = std::getenv("NEMOCUBE_TEST_CUDA");
    const bool required = wanted && std::string(wanted) == "required";
    std::cout << (required ? "runs on cuda cannot be tested: " : "skipped: runs on cuda: ") << reason
              << std::endl;
    if (required) std::exit(1);
    return false;
  }();
  return has;
}

/// Options of the software GPU for one run; without effect on a GPU.
struct EmulatorOptions {
  int seed = 1;
  int devices = 1;
  std::filesystem::path counters = {};  ///< empty: nothing is counted
};

/// The words that start `program`, with a device, before the program's own.
inline std::vector<std::string> on_cuda(const std::vector<std::string>& program,
                                        const EmulatorOptions& options = {}) {
  if (cuda::unavailable().empty()) return program;
  std::vector<std::string> words{"env", "CUDA_EMULATOR_LIBRARIES=" + emulator_libraries().string(),
                                 (source_dir() / "tools" / "cuda_emulator" / "run").string(), "--strict"};
  const char* seed = std::getenv("CUDA_EMULATOR_SEED");
  words.insert(words.end(), {"--seed", seed && options.seed == 1 ? seed : std::to_string(options.seed)});
  words.insert(words.end(), {"--devices", std::to_string(options.devices)});
  if (!options.counters.empty()) words.insert(words.end(), {"--counters", options.counters.string()});
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

}  // namespace nemocube::testing
