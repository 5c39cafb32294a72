#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "train/look/watch/watched_run.h"

namespace nemocube {

struct ViewOptions {
  std::size_t columns = 80, rows = 24;
  bool utf8 = false;    ///< curve and bar of characters beyond ASCII
  bool colour = false;  ///< terminal commands for colours
};

/// Facts that only the observer knows.
struct WatchMoment {
  double now = 0;               ///< seconds since 1970
  std::optional<double> quiet;  ///< seconds since the training log was seen to grow; absent: never seen
  bool has_folder = true;       ///< whether the directory of the run exists
  std::string nearest = {};     ///< nearest_folder(), where the folder does not exist
};

/// "running", "silent for 3m05s", "done", "stopped by signal 15", "failed", "waiting for the first step". A
/// run is silent when its training log has not grown for a minute, or for ten of its steps where that is
/// longer. The clocks of the machine that trains and of the observer may differ: observed growth counts
/// before the timestamps of lines.
std::string state_of(const WatchedRun& run, const WatchMoment& moment);

/// A view of a run as lines of at most `columns` characters, `rows` of them at most, the most important ones
/// first where not all fit. `name` is the run's. Depends on its arguments alone. Control characters of logs
/// are shown, not obeyed.
std::vector<std::string> view(const std::string& name, const WatchedRun& run, const WatchMoment& moment,
                              const ViewOptions& options);

}  // namespace nemocube
