#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "train/look/watch/log_tail.h"
#include "train/look/watch/watched_run.h"

namespace nemocube {

/// Reads the logs in the directory of a run while other processes write them: no lock, nothing is written, so
/// that a run can be watched from every machine that sees the directory. A run that has gone back logs to
/// training.jsonl.branch_N until its first checkpoint (train/logging/run_log.h); RunLogs then reads the log
/// of the highest N, if it is the newest.
class RunLogs {
 public:
  /// The directory need not exist yet.
  RunLogs(std::filesystem::path folder, std::size_t most_steps,
          std::int64_t most_history = LogTail::default_history);

  /// Reads a piece of each log that has news. True when there is more to read now. Throws Error naming the
  /// file or directory that cannot be read.
  bool poll();
  const WatchedRun& run() const { return run_; }
  std::size_t lines_read() const { return lines_read_; }  ///< of training.jsonl and history.jsonl
  const std::filesystem::path& folder() const { return folder_; }

 private:
  struct Names {
    std::string branch;                              // ending of the names of the logs to read
    std::map<std::string, std::string> validations;  // sets by name of their logs
  };
  Names find_names() const;
  void follow(const Names& names);
  void look_at_latest();

  std::filesystem::path folder_;
  std::int64_t most_history_;
  WatchedRun run_;
  std::size_t lines_read_ = 0;
  LogTail training_, history_;
  std::map<std::string, LogTail> validations_;  // by name of the set
};

}  // namespace nemocube
