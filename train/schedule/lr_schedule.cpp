#include "train/schedule/lr_schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numbers>
#include <ostream>
#include <string_view>

namespace nemocube {
namespace {

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// From 1 at r = 0 to 0 at r = 1.
double half_cosine(double r) { return 0.5 * (std::cos(std::numbers::pi * r) + 1.0); }

double wsd_share(WsdStyle style, double q) {
  switch (style) {
    case WsdStyle::linear:
      return 1.0 - q;
    case WsdStyle::cosine:
      return half_cosine(q);
    case WsdStyle::exponential:
      return 2.0 * std::pow(0.5, q) - 1.0;
    case WsdStyle::minus_sqrt:
      return 1.0 - std::sqrt(q);
  }
  expect(false, "unknown WSD style");
  return 0;
}

std::int64_t times(std::int64_t steps, std::int64_t per_step) {
  std::int64_t product = 0;
  require(!__builtin_mul_overflow(steps, per_step, &product), "lr_scheduler: ", steps, " steps of ", per_step,
          " samples are too many to count");
  return product;
}

std::string_view shortest(double value, std::array<char, 40>& buffer) {
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), static_cast<std::size_t>(end - buffer.data())};
}

ScheduleOptions options_of(const Recipe& recipe, std::int64_t total_steps) {
  const OptimizerSection optimizer = recipe.optimizer.value_or(OptimizerSection{});
  ScheduleOptions options;
  options.init_lr = options.max_lr = options.min_lr = optimizer.lr;
  options.start_wd = options.end_wd = optimizer.weight_decay;
  if (!recipe.lr_scheduler) return options;

  const LrSchedulerSection& section = *recipe.lr_scheduler;
  if (section.unit == ScheduleUnit::samples) options.per_step = recipe.step_scheduler.global_batch_size;
  const std::int64_t total = times(total_steps, options.per_step);
  options.style = section.lr_decay_style;
  options.init_lr = section.init_lr.value_or(0.1 * optimizer.lr);
  options.max_lr = section.max_lr.value_or(optimizer.lr);
  options.min_lr = section.min_lr.value_or(0.01 * optimizer.lr);
  options.warmup = section.lr_warmup_steps.value_or(
      times(std::min<std::int64_t>(1000, total_steps / 10), options.per_step));
  options.decay = section.lr_decay_steps.value_or(total);
  options.wsd_decay = section.wsd_decay_steps;
  options.wsd_style = section.lr_wsd_decay_style;
  options.start_wd = section.start_wd.value_or(optimizer.weight_decay);
  options.end_wd = section.end_wd.value_or(optimizer.weight_decay);
  options.wd_incr = section.wd_incr_steps.value_or(total);
  options.wd_style = section.wd_incr_style;
  return options;
}

/// For a message: the origin of the length that absent keys of lr_scheduler default to.
std::string origin_of_length(const Recipe& recipe, std::int64_t total_steps, LengthFrom from) {
  if (!recipe.lr_scheduler || recipe.lr_scheduler->lr_decay_steps) return "";
  if (from == LengthFrom::checkpoint)
    return cat(" (lr_decay_steps is absent, so the schedule of the checkpoint goes on, which is for ",
               total_steps, " steps)");
  const StepSchedulerSection& s = recipe.step_scheduler;
  if (s.max_steps && *s.max_steps <= total_steps)
    return cat(" (lr_decay_steps is absent, so step_scheduler.max_steps = ", *s.max_steps, " counts)");
  return cat(" (lr_decay_steps is absent, so the length of the run counts: ", total_steps,
             " steps, which the data gives",
             s.num_epochs ? cat(" in step_scheduler.num_epochs = ", *s.num_epochs, " epochs") : "", ")");
}

}  // namespace

LrSchedule::LrSchedule(const ScheduleOptions& options) : options_(options) {
  const ScheduleOptions& o = options_;
  const auto finite = [](double value) { return value >= 0 && std::isfinite(value); };
  require(finite(o.min_lr), "lr_scheduler.min_lr = ", o.min_lr, ": want a nonnegative number");
  require(finite(o.max_lr) && o.max_lr >= o.min_lr, "lr_scheduler.max_lr = ", o.max_lr,
          ": want at least min_lr = ", o.min_lr);
  require(finite(o.init_lr) && o.init_lr <= o.max_lr, "lr_scheduler.init_lr = ", o.init_lr,
          ": want 0 to max_lr = ", o.max_lr);
  require(o.decay > 0, "lr_scheduler.lr_decay_steps = ", o.decay, ": want a positive integer");
  require(o.warmup >= 0 && o.warmup < o.decay, "lr_scheduler.lr_warmup_steps = ", o.warmup,
          ": want 0 or more and less than lr_decay_steps = ", o.decay);
  if (o.style == DecayStyle::wsd) {
    require(o.wsd_decay.has_value(), "lr_scheduler.wsd_decay_steps is missing; lr_decay_style WSD wants it");
    require(*o.wsd_decay > 0, "lr_scheduler.wsd_decay_steps = ", *o.wsd_decay, ": want a positive integer");
    require(o.wsd_style.has_value(),
            "lr_scheduler.lr_wsd_decay_style is missing; lr_decay_style WSD wants it");
  }
  require(finite(o.start_wd), "lr_scheduler.start_wd = ", o.start_wd, ": want a nonnegative number");
  require(finite(o.end_wd) && o.end_wd >= o.start_wd, "lr_scheduler.end_wd = ", o.end_wd,
          ": want at least start_wd = ", o.start_wd);
  if (o.wd_style == WeightDecayStyle::constant)
    require(o.start_wd == o.end_wd,
            "lr_scheduler.wd_incr_style constant wants equal start_wd and end_wd, found ", o.start_wd,
            " and ", o.end_wd);
  else
    require(o.wd_incr > 0, "lr_scheduler.wd_incr_steps = ", o.wd_incr, ": want a positive integer");
  expect(o.per_step > 0, "schedule: per_step = ", o.per_step);
}

double LrSchedule::lr(std::int64_t n) const {
  expect(n >= 0, "lr: n = ", n);
  const ScheduleOptions& o = options_;
  if (o.warmup > 0 && n <= o.warmup)
    return o.init_lr + (o.max_lr - o.init_lr) * static_cast<double>(n) / static_cast<double>(o.warmup);
  if (o.style == DecayStyle::constant) return o.max_lr;
  if (n > o.decay) return o.min_lr;
  double share = 1;
  switch (o.style) {
    case DecayStyle::inverse_square_root: {
      const auto from = static_cast<double>(std::max<std::int64_t>(o.warmup, 1));
      const auto now = static_cast<double>(std::max<std::int64_t>(n, 1));
      return std::max(o.min_lr, o.max_lr * std::sqrt(from) / std::sqrt(now));
    }
    case DecayStyle::linear:
      share = 1.0 - ratio(n - o.warmup, o.decay - o.warmup);
      break;
    case DecayStyle::cosine:
      share = half_cosine(ratio(n - o.warmup, o.decay - o.warmup));
      break;
    case DecayStyle::wsd:
      if (n > o.decay - *o.wsd_decay)
        share = wsd_share(*o.wsd_style, ratio(n - (o.decay - *o.wsd_decay), *o.wsd_decay));
      break;
    case DecayStyle::constant:
      break;
  }
  return o.min_lr + share * (o.max_lr - o.min_lr);
}

double LrSchedule::weight_decay(std::int64_t n) const {
  expect(n >= 0, "weight_decay: n = ", n);
  const ScheduleOptions& o = options_;
  if (o.wd_style == WeightDecayStyle::constant || n > o.wd_incr) return o.end_wd;
  const double r = ratio(n, o.wd_incr);
  return o.start_wd +
         (o.wd_style == WeightDecayStyle::linear ? r : half_cosine(1 - r)) * (o.end_wd - o.start_wd);
}

LrSchedule make_schedule(const Recipe& recipe, std::int64_t total_steps, LengthFrom from) {
  expect(total_steps > 0, "make_schedule: total_steps = ", total_steps);
  try {
    return LrSchedule(options_of(recipe, total_steps));
  } catch (const Error& error) {
    fail(recipe.file, ": ", error.what(), origin_of_length(recipe, total_steps, from));
  }
}

void print_schedule(std::ostream& out, const Recipe& recipe) {
  const auto& max_steps = recipe.step_scheduler.max_steps;
  require(max_steps.has_value(), recipe.file,
          ": step_scheduler.max_steps is missing; it says how far to print");
  const LrSchedule schedule = make_schedule(recipe, *max_steps);
  const std::int64_t per_step = schedule.options().per_step;
  std::array<char, 40> buffer;
  for (std::int64_t step = 0; step <= *max_steps; ++step) {
    out << step << '\t' << shortest(schedule.lr(step * per_step), buffer);
    out << '\t' << shortest(schedule.weight_decay(step * per_step), buffer) << '\n';
    if (!out) break;
  }
}

}  // namespace nemocube
