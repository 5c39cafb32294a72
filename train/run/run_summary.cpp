#include "train/run/run_summary.h"

#include <cstring>

#include "core/log.h"
#include "train/logging/progress.h"

namespace nemocube {

std::string summary(const RunResult& r) {
  const std::int64_t here = r.steps_done - r.first_step;
  std::string text =
      r.signal == 0 ? "done: " : cat("stopped by signal ", r.signal, " (", ::strsignal(r.signal), "): ");
  text += counted(r.steps_done, "step");
  if (r.steps_done < r.total_steps) text += cat(" of ", r.total_steps);
  if (!r.early_stopping.empty()) text += cat(" (early stopping: ", r.early_stopping, ")");
  if (here < r.steps_done) text += cat(", ", here, " of them in this run");
  if (here > 0) {
    text += cat(" in ", short_duration(r.seconds));
    if (r.seconds > 0) text += cat(", ", short_count(static_cast<double>(r.tokens) / r.seconds), " tokens/s");
  }
  if (r.first_loss && r.last_loss) {
    text += cat(", loss ", *r.first_loss, " at step ", r.first_step);
    if (here > 1) text += cat(" and ", *r.last_loss, " at step ", r.steps_done - 1);
  }
  text += cat(", ", counted(r.skipped_steps, "skipped step"), "; ");
  return text + (r.checkpoint.empty() ? "no checkpoint was written"
                                      : cat("model in ", (r.checkpoint / "model").string()));
}

}  // namespace nemocube
