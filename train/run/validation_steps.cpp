#include "train/run/validation_steps.h"

#include <filesystem>
#include <sstream>
#include <utility>

#include "core/log.h"
#include "core/trace.h"
#include "parallel/comm/together.h"

namespace nemocube {

// A checkpoint is saved before its step is validated, so the loaded state lacks that validation. A recipe
// without early_stopping drops the count.
void ValidationSteps::count_known() {
  if (!run_.recipe.early_stopping) {
    run_.state.early_stopping.reset();
    return;
  }
  const std::int64_t step = run_.state.step - 1;
  if (step >= 0 && is_validation_step(run_.steps, step)) count(step, known_losses(step));
}

bool ValidationSteps::make_up(const Validation::Stop& stop) {
  const std::int64_t step = run_.state.step - 1;
  if (step < 0 || !is_due(step)) return true;
  const Losses known = known_losses(step);
  if (is_complete(known)) return true;
  log_info("validation after step ", step, " is missing and comes first");
  const Losses losses = run(stop, known);
  // A checkpoint elsewhere belongs to another run.
  const CheckpointSection& section = run_.recipe.checkpoint;
  std::error_code error;
  if (section.enabled && !losses.empty() &&
      std::filesystem::equivalent(run_.from->parent_path(), section.checkpoint_dir, error))
    run_.checkpoints.note_losses(*run_.from, losses);
  return is_complete(losses);
}

bool ValidationSteps::is_due(std::int64_t step, bool preempted) const {
  return run_.validation.sets() > 0 && is_validation_step(run_.steps, step, preempted);
}

Losses ValidationSteps::run(const Validation::Stop& stop, const Losses& known) {
  const RunState& state = run_.state;
  const std::int64_t step = state.step - 1;
  const trace::Span span(trace::Category::validation, "validation", {{"step", step}});
  const double lr = run_.schedule.lr(run_.schedule_position());
  Losses losses = run_.validation.run(*run_.loaded.parallel,
                                      {step, state.loader.epoch, lr, state.samples, log_}, stop, known);
  count(step, losses);
  return losses;
}

/// Counts the validation after `step` for early stopping, if the losses are those of all sets.
void ValidationSteps::count(std::int64_t step, const Losses& losses) {
  const auto& section = run_.recipe.early_stopping;
  if (!section || !is_complete(losses)) return;
  auto& state = run_.state.early_stopping;
  state = counted_validation(std::move(state), *section, step, losses.at(section->metric));
}

// As rank 0 finds them in files that change while it runs. pre: the run resumes from a checkpoint
Losses ValidationSteps::known_losses(std::int64_t step) const {
  const RunRanks& ranks = run_.ranks;
  Losses known;
  if (ranks.first())
    known = run_.validation.known_losses(*run_.from, run_.recipe.checkpoint.checkpoint_dir, step);
  if (!ranks.several()) return known;
  std::string names;
  for (const auto& [name, loss] : known) names += name + "\n";
  std::istringstream all(broadcast_text(ranks.world_group(), names));
  for (std::string name; std::getline(all, name);) known.emplace(name, 0);
  for (auto& [name, loss] : known) loss = ranks.sum(ranks.first() ? loss : 0);
  return known;
}

bool ValidationSteps::stops_early() const {
  const auto& section = run_.recipe.early_stopping;
  return section && has_ended(run_.state.early_stopping, *section);
}

std::string ValidationSteps::end_by_early_stopping() const {
  if (!stops_early()) return "";
  return reason_of_end(*run_.state.early_stopping, *run_.recipe.early_stopping);
}

}  // namespace nemocube
