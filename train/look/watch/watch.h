#pragma once
#include <cstdint>
#include <filesystem>

namespace nemocube {

struct WatchOptions {
  std::filesystem::path run;  ///< the directory of the run
  double interval = 1;        ///< seconds between two looks at the logs
  bool once = false;          ///< prints one view and returns
  bool keep = false;          ///< goes on when the run has ended
  std::int64_t steps = 2000;  ///< that are kept and drawn
};

/// Shows a run from its logs on standard output: on a terminal a view that is redrawn until the run ends, or
/// somebody types q or Ctrl-C; elsewhere, or once, one plain view. The last view stays on the screen. Returns
/// 0, or the signal that ended the watching. Waits for logs that do not exist yet.
/// errors  Error naming the run where it is no directory or its logs cannot be read
int watch_run(const WatchOptions& options);

}  // namespace nemocube
