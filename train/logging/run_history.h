#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "train/logging/wall_clock.h"

namespace nemocube {

inline constexpr const char* history_file = "history.jsonl";

/// Facts about a run at its start.
struct HistoryStart {
  std::int64_t first_step = 0, total_steps = 0;
  std::int64_t parameters = 0;  ///< trainable parameters of the whole model
  std::string dtype;            ///< of the weights
  int ranks = 1;
  std::string layout;  ///< of several ranks: RunRanks::text()
};

/// The file `history.jsonl`: the events of a run, over all its starts. One JSON object a line
/// with `step`, the number of steps done by then, `event` (start, checkpoint, warning, error,
/// end), `timestamp`, and fields of the event (docs/logs.md). Lines are never removed, even when a run goes
/// back to an older checkpoint.
///
/// Texts of warnings, errors and ends pass through `text_for_file` before they are written.
///
/// Rank 0 calls start(), checkpoint() and end(). While a RunHistory lives, the warnings of its process become
/// lines, too, and so does the error that ends the process, even after an exception has destroyed the
/// RunHistory. A rank that writes no line does not touch the file. On a network file system lines that two
/// machines write at the same moment may damage each other; readers leave damaged lines out. Where a line
/// cannot be written, the run goes on without it; start() alone throws.
class RunHistory {
 public:
  /// Touches no file. Only one RunHistory may live in a process.
  RunHistory(const std::filesystem::path& folder, int rank,
             std::function<std::string(std::string)> text_for_file,
             WallClock clock = std::chrono::system_clock::now);
  ~RunHistory();
  RunHistory(const RunHistory&) = delete;
  RunHistory& operator=(const RunHistory&) = delete;

  void set_steps_done(std::int64_t steps);
  /// Throws Error naming the file where it cannot be written or is no log of a run.
  void start(const HistoryStart& start);
  /// `seconds`: that writing took.
  void checkpoint(const std::string& name, std::int64_t bytes, double seconds);
  /// `text` says how the run ended; `signal`: the signal that ended it early, or 0; `early_stopping`: why
  /// early stopping ended the run, or empty.
  void end(int signal, std::string_view text, std::string_view early_stopping = {});

 private:
  class File;
  std::shared_ptr<File> file_;
  int exceptions_;
};

}  // namespace nemocube
