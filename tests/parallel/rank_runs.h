#pragma once
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/process.h"

/// Runs of the program on several ranks.
namespace nemocube::testing {

/// Waits until `path` exists, at most half a minute.
inline void wait_for(const std::filesystem::path& path) {
  for (int i = 0; i < 3000 && !std::filesystem::exists(path); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace nemocube::testing
