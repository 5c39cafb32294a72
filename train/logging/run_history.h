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

/// What a run is when it starts.
struct HistoryStart {
  std::int64_t first_step = 0, total_steps = 0;
  std::int64_t parameters = 0;  ///< trainable ones of the whole model
  std::string dtype;            ///< of the weights
  int ranks = 1;
  std::string layout;  ///< of several ranks: what RunRanks::text() says
};

/// The file `history.jsonl`: what happened to a run, over all its starts. One JSON object a line with `step`,
/// the number of steps done by then, `event` (start, checkpoint, warning, error, end), `timestamp`, and
/// fields of the event (docs/logs.md). Nothing is ever removed from it, also when a run goes back to an older
/// checkpoint.
///
/// Texts of warnings, errors and ends are as `text_for_file` gives them back.
///
/// Rank 0 calls start(), checkpoint() and end(). While a RunHistory lives, the warnings of its process are
/// lines as well, and so is the error that ends the process, also after an exception has destroyed the
/// RunHistory. A rank that writes no line does not touch the file. On a network file system lines that two
/// machines write at the same moment may damage each other, which readers leave out. Where a line cannot be
/// written, the run goes on without it; start() alone throws.
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
  /// Throws Error naming the file where it cannot be written, or is no log of a run.
  void start(const HistoryStart& start);
  /// `seconds`: that writing took.
  void checkpoint(const std::string& name, std::int64_t bytes, double seconds);
  /// `text` says how the run ended; `signal`: the signal that ended it early, or 0; `early_stopping`: why
  /// early stopping ended it, or empty.
  void end(int signal, std::string_view text, std::string_view early_stopping = {});

 private:
  class File;
  std::shared_ptr<File> file_;
  int exceptions_;
};

}  // namespace nemocube
