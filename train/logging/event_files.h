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
/// a file, events.out.tfevents.SECONDS.HOST.PID.N, whose name sorts after the names of earlier starts,
/// because readers take the files of a folder in the order of their names. The file begins with a START event
/// (start_record()), so that readers drop points of earlier starts that this start repeats. A file that a
/// crash has cut off is readable up to the cut.
///
/// The events of a run that leaves a branch (LogStart::leaves_branch) go to
/// branch_SERIAL.SECONDS.HOST.PID.N, which no reader takes for an event file, until keep_branch() renames it
/// to one. If the run is killed in between, the next start renames the file, or, if the run saved no
/// checkpoint, moves it to the folder `abandoned`.
class EventFiles {
 public:
  struct Start {
    std::int64_t first_step = 0;  ///< points of earlier starts count below this step
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
