#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/outcome.h"

/// DRAM bytes of kernels that touch each byte once and far more of them than the L2 holds.
namespace {

/// What the counters of the one kernel say of `what`.
std::uint64_t counted(const std::string& what, const std::string& kernel, int seed) {
  const std::string file =
      (std::filesystem::temp_directory_path() / ("traffic_" + std::to_string(getpid()) + ".json")).string();
  const Outcome outcome =
      outcome_of("'" CUDA_EMULATOR_RUN "' --seed " + std::to_string(seed) + " --l2 1M --counters '" + file +
                 "' '" CUDA_EMULATOR_TRAFFIC "' " + kernel);
  CAPTURE(outcome.text);
  REQUIRE(outcome.status == 0);
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  std::filesystem::remove(file);
  const std::string key = '"' + what + "\":";
  const std::size_t at = text.str().find(key);
  REQUIRE(at != std::string::npos);
  return std::stoull(text.str().substr(at + key.size()));
}

constexpr double matrix = 4096 * 512 * 4;

}  // namespace

TEST_CASE("DRAM bytes of a launch larger than the L2 are what the kernel touches, at every seed") {
  for (const int seed : {1, 2, 3}) {
    CAPTURE(seed);
    CHECK(static_cast<double>(counted("dram_bytes", "copy", seed)) ==
          doctest::Approx(2 * matrix).epsilon(0.01));
    CHECK(static_cast<double>(counted("dram_bytes", "column_sums", seed)) ==
          doctest::Approx(matrix + 128 * 64 * 4).epsilon(0.01));
  }
}

TEST_CASE("blocks of a launch, and how many of them a multiprocessor holds") {
  CHECK(counted("blocks", "copy", 1) == 4096 * 512 / 256);
  // 64 warps of a multiprocessor, 8 of each block.
  CHECK(counted("resident_blocks", "copy", 1) == 8);
}
