#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

/// Progress of long work, for a person to watch: in a terminal one line that is rewritten, elsewhere a plain
/// line from time to time.
namespace nemocube {

/// Where progress is shown, and how often.
struct ProgressDisplay {
  bool terminal = false;                       ///< show() replaces the previous line instead of adding one
  double min_seconds = 0.1;                    ///< terminal: between two rewrites
  double every_seconds = 30;                   ///< plain: between two lines
  std::function<void(std::string_view)> show;  ///< gets a line without line end; empty removes the line
  std::function<std::string()> shown;          ///< terminal: the line on the screen, or empty
  std::function<void()> keep;                  ///< terminal: leaves the line above later output
  std::function<double()> clock;               ///< seconds, never going back
};
/// Writes to standard error: the status line of core/log.h in a terminal, messages of level info elsewhere.
/// Shows nothing when messages of level info are off.
ProgressDisplay stderr_display();

struct ProgressStep {
  std::int64_t step = 0;   ///< counted from 0
  std::int64_t total = 0;  ///< steps of the whole run
  std::int64_t epoch = 0;  ///< counted from 0
  double loss = 0, lr = 0, grad_norm = 0;
  std::int64_t tokens = 0;  ///< in this step
  bool skipped = false;
  double imbalance = 0;                 ///< of the tokens of experts, in the most uneven layer; 0: not shown
  std::vector<double> mtp_losses = {};  ///< of each depth of multi-token prediction
};

/// Training, after each step:
///     step 12 of 50 (26 %)  epoch 1  3m05s left  loss 2.3456  1.2k tokens/s  lr 9.5e-05  grad norm 1.23
/// in a terminal with a bar, "[##------]", behind the percentage, and at its end, where experts are watched,
/// "busiest expert 1.83 x mean". After the loss those of multi-token prediction, where it is trained: "mtp
/// 3.2500 4.5000". The percentage counts finished steps. Rates are taken over the last 32 steps.
class StepProgress {
 public:
  explicit StepProgress(ProgressDisplay display = stderr_display());
  /// In a terminal the last line stays on the screen.
  ~StepProgress();
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;

  /// The first and the last step of a run are always shown. Without a terminal, of the others every tenth is.
  void step(const ProgressStep& now);

 private:
  std::string describe(const ProgressStep& now) const;
  bool due(const ProgressStep& now, double time) const;

  struct Mark {
    double time;
    std::int64_t step, tokens;  ///< done up to then
  };
  ProgressDisplay display_;
  std::deque<Mark> recent_;  ///< the last steps
  double shown_at_ = 0;
  std::int64_t shown_step_ = -1;
};

/// Work of a known number of parts, such as the rows of a validation set, or bytes:
///     validation: 12 of 80 rows (15 %)  3s left  23 rows/s
///     weights: 1.20 GB of 8.00 GB (15 %)  28s left  240 MB/s
/// In a terminal a bar stands behind the percentage; at the end the line disappears, and the line before it
/// comes back. Elsewhere, work that ends within `every_seconds` shows nothing.
class TaskProgress {
 public:
  /// `unit`: a plural such as "rows"; "bytes" are written in kB, MB, GB.
  TaskProgress(std::string what, std::string unit, ProgressDisplay display = stderr_display());
  ~TaskProgress();
  TaskProgress(const TaskProgress&) = delete;
  TaskProgress& operator=(const TaskProgress&) = delete;

  void operator()(std::int64_t done, std::int64_t total);

 private:
  std::string describe(std::int64_t done, std::int64_t total, double time) const;
  std::string what_, unit_;
  ProgressDisplay display_;
  std::string before_;  ///< the line on the screen when this began
  double started_at_, shown_at_;
  bool shown_ = false;
};

/// Called during work of `total` parts when `done` of them are done.
using OnProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// "12s", "3m05s", "1h02m", "4d07h"; "?" for a number that is not a time.
std::string short_duration(double seconds);
/// "950", "1.2k", "3.4M", "5.6G".
std::string short_count(double value);
/// "31.2 MB in 0.4 s, 78 MB/s"; without the rate where no time has passed.
std::string transfer_text(std::int64_t bytes, double seconds);
/// "[###-----]" of `columns` columns, at least 3.
std::string progress_bar(std::int64_t done, std::int64_t total, std::size_t columns);

}  // namespace nemocube
