#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "machine/access.h"
#include "machine/program.h"

namespace emulator {

/// What one worker thread counts while it runs blocks of a launch; merged when the launch ends.
class Tally {
 public:
  explicit Tally(bool enabled) : enabled_(enabled) {}
  /// Called once for every executed instruction.
  void executed(const Instruction& i, LaneMask lanes) {
    ++warp_instructions_;
    lane_instructions_ += static_cast<std::uint64_t>(std::popcount(lanes));
    if (enabled_) count(i, lanes);
  }
  /// A global access (after bounds were checked): bytes asked, sectors, L2.
  void global(const Access& access) {
    if (enabled_) count_global(access);
  }
  /// A shared access: wavefronts and their ideal. `matrix_rows`: ldmatrix and stmatrix, whose phases are rows of 16 bytes.
  void shared(const Access& access, bool matrix_rows = false) {
    if (enabled_) count_shared(access, matrix_rows);
  }
  void local(std::uint32_t bytes, LaneMask lanes) {
    local_bytes_ += bytes * static_cast<std::uint64_t>(std::popcount(lanes));
  }
  bool enabled() const { return enabled_; }
  std::uint64_t lane_instructions() const { return lane_instructions_; }
  std::uint64_t warp_instructions() const { return warp_instructions_; }

 private:
  friend class LaunchCounters;
  void count(const Instruction& i, LaneMask lanes);
  void count_global(const Access& access);
  void count_shared(const Access& access, bool matrix_rows);
  bool enabled_;
  std::uint64_t warp_instructions_ = 0, lane_instructions_ = 0, local_bytes_ = 0;
  std::array<std::uint64_t, instruction_classes> by_class_{};
  std::uint64_t multiply_adds_ = 0, matrix_multiply_adds_ = 0, atomics_ = 0;
  std::uint64_t global_bytes_ = 0, sectors_ = 0, requests_ = 0;
  std::uint64_t wavefronts_ = 0, ideal_wavefronts_ = 0;
  class L2* l2_ = nullptr;
};

/// Counters of one launch.
class LaunchCounters {
 public:
  LaunchCounters();
  ~LaunchCounters();
  std::unique_ptr<Tally> make_tally();
  void merge(const Tally& tally);
  /// Adds the launch to the totals of its kernel.
  void finish(const Kernel& kernel, const class Launch& launch);
  std::uint64_t lane_instructions() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether counters are on: CUDA_EMULATOR_COUNTERS names a file.
bool counters_enabled();
/// cudaProfilerStart: totals begin at zero.
void restart_counters();
/// cudaProfilerStop and the end of the process: writes totals since the last restart to the file, as JSON.
void write_counters();
/// The same as a table on standard error, for people.
void print_counters();

}  // namespace emulator
