#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace nemocube {

/// The shown part of a line of training.jsonl. Fields that are no numbers in the line are absent.
struct WatchedStep {
  std::int64_t step = 0, epoch = 0;
  double time = 0;                                 ///< seconds since 1970
  std::optional<double> loss, grad_norm, lr, mem;  ///< of the loss also values that are not finite
  std::optional<double> tokens_per_second, tokens_per_second_and_rank, mfu, tokens;
  std::int64_t skipped_steps = 0;
  std::optional<double> seconds() const;  ///< that the step took
};

/// A checkpoint, as history.jsonl or the link LATEST names it.
struct WatchedCheckpoint {
  std::string name;
  double time = 0;  ///< seconds since 1970
  std::optional<double> bytes, seconds;
};

/// A warning or an error.
struct WatchedMessage {
  bool error = false;
  double time = 0;
  std::int64_t rank = 0;
  std::string text;
};

/// The last start of a run.
struct WatchedStart {
  double time = 0;
  std::int64_t first_step = 0, total_steps = 0, parameters = 0, ranks = 1;
  std::string dtype, layout, host, version;
};

/// The validations of one set.
struct WatchedValidation {
  struct Loss {
    std::int64_t step = 0;
    double loss = 0;
  };
  std::optional<Loss> last, before, lowest;
};

/// The state of a run from its logs, of bounded size: the last steps and messages. Fed line by line; a line
/// that is no JSON object of the log (damaged, or of a later version) changes nothing.
class WatchedRun {
 public:
  static constexpr std::size_t most_messages = 50, most_sets = 100;
  /// Keeps the last `most_steps` steps.
  explicit WatchedRun(std::size_t most_steps) : most_steps_(most_steps) {}

  void training_line(std::string_view line);
  void validation_line(const std::string& set, std::string_view line);
  void history_line(std::string_view line);
  void forget_training();
  void forget_validation(const std::string& set) { validations.erase(set); }
  void forget_history();

  std::deque<WatchedStep> steps;                         ///< by rising step
  std::map<std::string, WatchedValidation> validations;  ///< by name of the set
  std::optional<WatchedStart> start;  ///< absent where the program that wrote the logs has no history
  std::optional<std::string> end;     ///< how the last start ended; absent while it goes on
  bool failed = false;                ///< with `end`: by an error
  int signal = 0;                     ///< with `end`: the signal that ended it early
  std::optional<WatchedCheckpoint> checkpoint;  ///< the last one written
  std::deque<WatchedMessage> messages;          ///< of the last start, the newest last
  std::string layout, version;                  ///< as in the training log
  std::string branch;  ///< the log that is followed, where the run has gone back and saved no checkpoint yet

 private:
  std::size_t most_steps_;
};

}  // namespace nemocube
