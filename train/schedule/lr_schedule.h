#pragma once
#include <cstdint>
#include <iosfwd>

#include "train/recipe/recipe.h"

/// Learning rate and weight decay as functions of the progress n, which counts optimizer steps or samples:
/// with w = warmup, d = decay, r = (n - w) / (d - w), q = (n - (d - wsd_decay)) / wsd_decay,
///     n <= w, w > 0         init + (max - init) n / w
///     constant              max
///     n > d                 min
///     inverse-square-root   max(min, max sqrt(max(w, 1) / max(n, 1))), which drops to min after d
///     otherwise             min + c (max - min), c = 1 - r (linear), (cos(pi r) + 1) / 2 (cosine), and
///                           for WSD 1 while q <= 0, then 1 - q, (cos(pi q) + 1) / 2, 2 0.5^q - 1 or
///                           1 - sqrt(q)
/// Weight decay goes from start to end over wd_incr. These are the formulas of Megatron-LM's
/// OptimizerParamScheduler (megatron/core/optimizer_param_scheduler.py) and of NeMo AutoModel's copy, without
/// their state: a checkpoint stores n, and the length of the run that absent keys of the recipe follow from.
///
/// Step k of training (counted from 0) uses lr(k * per_step); the value after it, lr((k + 1) * per_step), is
/// the one that AutoModel logs for step k.
namespace nemocube {

struct ScheduleOptions {
  DecayStyle style = DecayStyle::constant;
  double init_lr = 0, max_lr = 0, min_lr = 0;
  std::int64_t warmup = 0;                ///< n at which the warm-up ends; below `decay`
  std::int64_t decay = 1;                 ///< n at which min_lr is reached and stays
  std::optional<std::int64_t> wsd_decay;  ///< length of the last phase of style wsd
  std::optional<WsdStyle> wsd_style;
  double start_wd = 0, end_wd = 0;
  std::int64_t wd_incr = 0;  ///< n at which end_wd is reached
  WeightDecayStyle wd_style = WeightDecayStyle::constant;
  std::int64_t per_step = 1;  ///< the step of n for one optimizer step: 1, or samples in a global batch
};

/// The source of a schedule's length: this run, or the checkpoint that it resumes from.
enum class LengthFrom { run, checkpoint };

class LrSchedule {
 public:
  /// Throws Error naming the key of lr_scheduler that contradicts another.
  explicit LrSchedule(const ScheduleOptions& options);
  /// The learning rate at progress n >= 0, before a group's lr_mult.
  double lr(std::int64_t n) const;
  /// The weight decay at progress n >= 0, before a group's wd_mult.
  double weight_decay(std::int64_t n) const;
  const ScheduleOptions& options() const { return options_; }

 private:
  ScheduleOptions options_;
};

/// The recipe's schedule for a run of `total_steps` optimizer steps. Absent keys: warm-up min(1000, total /
/// 10) steps, decay and weight-decay length the whole run, init 0.1 lr, max lr, min 0.01 lr, weight decay as
/// in the optimizer section. Without a section lr_scheduler both are constant.
LrSchedule make_schedule(const Recipe& recipe, std::int64_t total_steps, LengthFrom from = LengthFrom::run);

/// One line for each step 0 ... step_scheduler.max_steps: step, learning rate, weight decay, separated by
/// tabs, in the shortest decimal form that reads back as the same double. Needs max_steps. Reads only the
/// sections step_scheduler, optimizer and lr_scheduler.
void print_schedule(std::ostream& out, const Recipe& recipe);

}  // namespace nemocube
