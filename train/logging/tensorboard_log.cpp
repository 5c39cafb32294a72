#include "train/logging/tensorboard_log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/error.h"

namespace nemocube {
namespace {

void add_known(Scalars& scalars, const char* tag, const std::optional<double>& value) {
  if (value) scalars.emplace_back(tag, *value);
}

/// Megatron's name of a field of training.jsonl.
std::string megatron_loss(std::string_view field) {
  constexpr std::array<std::array<std::string_view, 2>, 4> names{
      {{"aux_loss", "load_balancing_loss"},
       {"seq_aux_loss", "seq_load_balancing_loss"},
       {"global_aux_loss", "global_load_balancing_loss"},
       {"z_loss", "z_loss"}}};
  const auto* const found = std::ranges::find(names, field, [](const auto& entry) { return entry.front(); });
  expect(found != names.end(), "no name of Megatron's for ", field);
  return std::string(found->back());
}

/// The tags that Megatron writes against steps and against samples.
Scalars megatron_training(const TensorboardOptions& options, const TrainingRecord& r) {
  Scalars scalars{
      {"learning-rate", r.lr}, {"batch-size", static_cast<double>(r.samples)}, {"lm loss", r.loss}};
  if (options.log_world_size) scalars.emplace_back("world-size", r.ranks);
  add_known(scalars, "grad-norm", r.grad_norm);
  return scalars;
}

Scalars megatron_validation(const TensorboardOptions& options, const std::string& set,
                            const ValidationRecord& r) {
  const std::string tag = "lm loss validation" + (set == "default" ? "" : " " + set);
  Scalars scalars{{tag, r.val_loss}};
  if (options.log_validation_ppl)
    scalars.emplace_back(tag + " ppl", std::exp(r.val_loss > 20 ? 20.0 : r.val_loss));
  return scalars;
}

Scalars with_ending(Scalars scalars, const char* ending) {
  for (auto& [tag, value] : scalars) tag += ending;
  return scalars;
}

}  // namespace

Scalars training_scalars(const TensorboardOptions& options, const TrainingRecord& r, double seconds,
                         double flops, std::int64_t steps) {
  Scalars scalars = megatron_training(options, r);
  for (std::size_t k = 0; k < r.mtp_losses.size(); ++k)
    scalars.emplace_back(cat("mtp_", k + 1, " loss"), r.mtp_losses[k]);
  for (const auto& [field, value] : r.mean_auxiliary_losses)
    scalars.emplace_back(megatron_loss(field), value);
  if (options.log_timers) scalars.emplace_back("iteration-time", seconds / static_cast<double>(steps));
  if (options.log_throughput && flops > 0 && seconds > 0)
    scalars.emplace_back("throughput", flops / (seconds * 1e12 * r.ranks));
  if (options.log_memory) scalars.emplace_back("mem-max-allocated-bytes", static_cast<double>(r.peak_bytes));

  scalars.emplace_back("loss", r.loss);
  add_known(scalars, "grad_norm", r.grad_norm);
  scalars.emplace_back("lr", r.lr);
  scalars.emplace_back("mem", gib(r.peak_bytes));
  add_known(scalars, "tps", r.per_second(r.tokens));
  add_known(scalars, "tps_per_gpu", r.tokens_per_second_and_rank());
  add_known(scalars, "mfu", r.mfu);
  scalars.emplace_back("num_tokens_per_step", static_cast<double>(r.tokens));
  scalars.emplace_back("num_label_tokens", static_cast<double>(r.label_tokens));
  scalars.emplace_back("skipped_steps", static_cast<double>(r.skipped_steps));
  if (!r.experts.imbalance.empty()) scalars.emplace_back("expert_imbalance", r.experts.worst());
  return scalars;
}

Scalars training_scalars_vs_samples(const TensorboardOptions& options, const TrainingRecord& r) {
  return with_ending(megatron_training(options, r), " vs samples");
}

Scalars validation_scalars(const TensorboardOptions& options, const std::string& set,
                           const ValidationRecord& r) {
  Scalars scalars = megatron_validation(options, set, r);
  Scalars fields{{"val_loss", r.val_loss}};
  add_known(fields, "exact_match", r.exact_match);
  add_known(fields, "f1", r.f1);
  const std::string ending = set == "default" ? "" : "_" + set;
  for (const auto& entry : with_ending(fields, ending.c_str())) scalars.push_back(entry);
  return scalars;
}

Scalars validation_scalars_vs_samples(const TensorboardOptions& options, const std::string& set,
                                      const ValidationRecord& r) {
  return with_ending(megatron_validation(options, set, r), " vs samples");
}

// The last point over samples before this start is at start.consumed_samples.
TensorboardLog::TensorboardLog(TensorboardOptions options, const Start& start, const WallClock& clock)
    : options_(std::move(options)),
      steps_(options_.folder, {start.first_step, start.serial, start.leaves_branch}, clock),
      samples_(options_.folder / "samples", {start.consumed_samples + 1, start.serial, start.leaves_branch},
               clock) {}

void TensorboardLog::training(const TrainingRecord& record) {
  seconds_ += record.seconds;
  flops_ += record.flops;
  ++steps_since_point_;
  if ((record.step + 1) % options_.log_interval != 0) return;
  steps_.add(record.step, training_scalars(options_, record, seconds_, flops_, steps_since_point_));
  samples_.add(record.consumed_samples, training_scalars_vs_samples(options_, record));
  seconds_ = flops_ = 0;
  steps_since_point_ = 0;
}

void TensorboardLog::validation(const std::string& set, const ValidationRecord& record) {
  steps_.add(record.step, validation_scalars(options_, set, record));
  samples_.add(record.consumed_samples, validation_scalars_vs_samples(options_, set, record));
}

void TensorboardLog::keep_branch() {
  steps_.keep_branch();
  samples_.keep_branch();
}

}  // namespace nemocube
