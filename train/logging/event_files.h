#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "train/logging/append_file.h"
#include "train/logging/event_records.h"
#include "train/logging/wall_clock.h"

namespace nemocube {

/// The event files of a run in one folder, which TensorBoard shows as one run. Each start of the program adds
/// a file, events.out.tfevents.SECONDS.HOST.PID.N, whose name sorts behind those of earlier starts, because
/// readers take the files of a folder in the order of their names. The file begins with a START event
/// (start_record()), so that points of an earlier start that this one repeats are not shown. A file that a
/// crash has cut off is readable up to there.
///
/// The events of a run that leaves a branch (LogStart::leaves_branch) go to branch_SERIAL.SECONDS.HOST.PID.N,
/// which no reader takes for an event file, until keep_branch() gives it the name of one. If the run is
/// killed in between, the next start does so; if that run saved no checkpoint, the next start moves its file
/// to the folder `abandoned`.
class EventFiles {
 public:
  struct Start {
    std::int64_t first_step = 0;  ///< the points of earlier starts are good below it
    std::int64_t serial = 1;      ///< LogStart::serial
    bool leaves_branch = false;
  };
  /// Touches no file.
  EventFiles(std::filesystem::path folder, Start start, WallClock clock);

  /// Adds points. Without scalars nothing happens. Throws Error naming the file and the reason.
  void add(std::int64_t step, const Scalars& scalars);
  void keep_branch();

 private:
  double now() const;
  std::string new_ending() const;
  void settle_branches(std::int64_t last_serial) const;
  void open();

  std::filesystem::path folder_;
  Start start_;
  WallClock clock_;
  std::string ending_;  // of the file's name: SECONDS.HOST.PID.N
  std::optional<AppendFile> file_;
};

}  // namespace nemocube
