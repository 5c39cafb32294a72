#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

/// The line that tells a person how a run is doing:
///     step 12/50  loss 2.3456  lr 9.5e-05  grad norm 1.23  1.2k tokens/s  ETA 3m05s
namespace nemocube {

struct ProgressOptions {
  bool terminal = false;          ///< rewrite one line, instead of adding plain ones
  int width = 80;                 ///< columns of the terminal
  double min_seconds = 0.1;       ///< terminal: between two rewrites
  std::int64_t every_steps = 10;  ///< plain: a line after so many steps ...
  double every_seconds = 30;      ///< plain: ... or so much time, whichever is first
};

struct ProgressStep {
  std::int64_t step = 0;   ///< counted from 0
  std::int64_t total = 0;  ///< steps of the whole run
  double loss = 0, lr = 0, grad_norm = 0;
  std::int64_t tokens = 0;  ///< in this step
  bool skipped = false;
};

class Progress {
 public:
  using Sink = std::function<void(std::string_view)>;
  using Clock = std::function<double()>;  ///< seconds, never going back

  /// `sink` gets each piece of text whole.
  Progress(ProgressOptions options, Sink sink, Clock clock);
  /// On standard error, as a terminal of its present width or as plain lines.
  static Progress on_stderr();

  /// After a step. The first and the last step of a run are always shown.
  void step(const ProgressStep& now);
  /// Takes the rewritten line away, so that other messages can be printed; the next step brings it back.
  void clear();
  /// Ends the rewritten line. Call it once, when the run stops.
  void finish();

 private:
  std::string describe(const ProgressStep& now) const;
  bool due(const ProgressStep& now, double time) const;
  void rewrite(const std::string& text);

  struct Mark {
    double time;
    std::int64_t step, tokens;  ///< done up to then
  };
  ProgressOptions options_;
  Sink sink_;
  Clock clock_;
  std::deque<Mark> recent_;  ///< the last steps; the rates are taken over them
  double shown_at_ = 0;
  std::int64_t shown_step_ = -1;
  bool shown_ = false;
  std::size_t on_line_ = 0;  ///< characters of the rewritten line
};

/// "12s", "3m05s", "1h02m", "4d07h"; "?" for what is not a time.
std::string short_duration(double seconds);
/// "950", "1.2k", "3.4M", "5.6G".
std::string short_count(double value);

}  // namespace nemocube
