#pragma once
#include <cstdint>
#include <filesystem>

#include "data/loader/loader.h"

namespace nemocube {

/// Everything a run needs to go on, besides tensors. Random draws depend on seeds and counters alone.
struct RunState {
  std::int64_t step = 0;             ///< steps done
  std::int64_t scheduler_steps = 0;  ///< progress of the learning-rate schedule: skipped steps do not count
  std::int64_t optimizer_steps = 0;
  std::int64_t samples = 0;  ///< consumed, skipped steps included
  std::int64_t skipped_steps = 0;
  std::int64_t nonfinite_in_a_row = 0;
  LoaderState loader;  ///< after the last step, in the epoch of that step
};

void write_run_state(const std::filesystem::path& file, const RunState& state);
/// Throws Error naming the file and the field that is missing, negative or no integer.
RunState read_run_state(const std::filesystem::path& file);

}  // namespace nemocube
