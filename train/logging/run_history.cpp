#include "train/logging/run_history.h"

#include <unistd.h>

#include <atomic>
#include <exception>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/host_name.h"
#include "core/log.h"
#include "core/version.h"
#include "train/logging/append_file.h"
#include "train/logging/run_log.h"

namespace nemocube {
/// Shared with the listener of the log, which may outlive the run. Many threads may append.
class RunHistory::File {
 public:
  File(std::filesystem::path path, int rank, std::function<std::string(std::string)> text_for_file,
       WallClock clock)
      : path_(std::move(path)),
        rank_(rank),
        text_for_file_(std::move(text_for_file)),
        clock_(std::move(clock)) {}

  std::atomic<std::int64_t> steps_done{0};

  void append(std::string_view event, const std::function<void(JsonLine&)>& fields) {
    JsonLine line;
    line.add("step", steps_done.load()).add("event", event).add("timestamp", utc_timestamp(clock_()));
    fields(line);
    const std::lock_guard lock(mutex_);
    const std::string text = line.text() + "\n";
    if (file_ && !file_->has_its_name()) file_.reset();
    if (!file_) {
      refuse_foreign_file();
      file_.emplace(path_);
      if (ends_within_line()) file_->append("\n");
    }
    try {
      file_->append(text);
    } catch (...) {
      file_.reset();  // a part of the line may be there
      throw;
    }
  }
  void start(const std::function<void(JsonLine&)>& fields) {
    try {
      append("start", fields);
    } catch (...) {
      warned_ = true;  // the error says what a warning would
      throw;
    }
  }
  // Losing a line must not stop a run.
  void try_append(std::string_view event, const std::function<void(JsonLine&)>& fields) noexcept {
    try {
      append(event, fields);
    } catch (const std::exception& e) {
      if (!warned_.exchange(true)) log_warning(e.what(), "; the run goes on without this log");
    }
  }
  void message(LogLevel level, const std::string& text) noexcept {
    try_append(level == LogLevel::error ? "error" : "warning", [&](JsonLine& line) {
      line.add("rank", std::int64_t{rank_}).add("text", text_for_file_(text));
    });
  }
  void end(int signal, std::string_view text, std::string_view early_stopping) noexcept {
    try_append("end", [&](JsonLine& line) {
      line.add("signal", std::int64_t{signal}).add("text", text_for_file_(std::string(text)));
      if (!early_stopping.empty()) line.add("early_stopping", text_for_file_(std::string(early_stopping)));
    });
  }

 private:
  // What is refused is not written to: the message of the refusal, which the log hands on to message(), is
  // lost here.
  void refuse_foreign_file() const {
    require(is_run_log(path_), path_.string(),
            ": is in the way and no log of a training run; want another checkpoint.checkpoint_dir");
  }
  // After a full disk or a crash.
  bool ends_within_line() const {
    std::ifstream in(path_, std::ios::binary | std::ios::ate);
    if (!in || in.tellg() <= 0) return false;
    in.seekg(-1, std::ios::end);
    return in.get() != '\n';
  }
  std::filesystem::path path_;
  int rank_;
  std::function<std::string(std::string)> text_for_file_;
  WallClock clock_;
  std::mutex mutex_;
  std::optional<AppendFile> file_;
  std::atomic<bool> warned_{false};
};

RunHistory::RunHistory(const std::filesystem::path& folder, int rank,
                       std::function<std::string(std::string)> text_for_file, WallClock clock)
    : file_(std::make_shared<File>(folder / history_file, rank, std::move(text_for_file), std::move(clock))),
      exceptions_(std::uncaught_exceptions()) {
  set_log_listener([file = file_](LogLevel level, const std::string& text) { file->message(level, text); });
}

RunHistory::~RunHistory() {
  // The message of the exception is written later, where the process ends.
  if (std::uncaught_exceptions() <= exceptions_) set_log_listener({});
}

void RunHistory::set_steps_done(std::int64_t steps) { file_->steps_done = steps; }

void RunHistory::start(const HistoryStart& s) {
  set_steps_done(s.first_step);
  file_->start([&](JsonLine& line) {
    line.add("total_steps", s.total_steps).add("parameters", s.parameters).add("dtype", s.dtype);
    line.add("ranks", std::int64_t{s.ranks});
    if (!s.layout.empty()) line.add("layout", s.layout);
    line.add("host", host_name("?")).add("process", std::int64_t{::getpid()}).add("version", version());
  });
}

void RunHistory::checkpoint(const std::string& name, std::int64_t bytes, double seconds) {
  file_->try_append("checkpoint", [&](JsonLine& line) {
    line.add("name", name).add("bytes", bytes).add("seconds", seconds);
  });
}

void RunHistory::end(int signal, std::string_view text, std::string_view early_stopping) {
  file_->end(signal, text, early_stopping);
}

}  // namespace nemocube
