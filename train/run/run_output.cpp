#include "train/run/run_output.h"

#include <vector>

#include "core/log.h"
#include "core/quote.h"
#include "train/assemble/from_recipe.h"
#include "train/finetune/frozen.h"
#include "train/logging/progress.h"
#include "train/run/tensorboard.h"

namespace nemocube {

RunOutput::RunOutput(const StartedRun& run, const std::optional<StepRange>& profile) : run_(run) {
  const std::filesystem::path folder = run.recipe.checkpoint.checkpoint_dir;
  if (profile) profile_.emplace(*profile, run.ranks, run.loaded.groups.get(), folder, run.recipe.cuda_graphs);
  if (!run.ranks.first()) return;
  std::vector<std::string> validation_sets;
  for (const auto& [name, section] : run.recipe.validation_datasets) validation_sets.push_back(name);
  log_.emplace(folder, validation_sets,
               LogStart{run.state.step, run.checkpoints.next_serial(), run.checkpoints.to_be_abandoned() > 0,
                        run.ranks.several() ? run.ranks.text(run.recipe.kernels) : "", run.state.samples,
                        tensorboard_options(run.recipe)});
}

void RunOutput::begin(const std::string& early_stopping) {
  const RunRanks& ranks = run_.ranks;
  const Stack& model = *run_.loaded.model;
  const std::int64_t step = run_.state.step, total = run_.steps.total_steps;
  if (step >= total)
    log_info("nothing to train: ", counted(step, "step"), " done, the recipe asks for ", total);
  else if (!early_stopping.empty())
    log_info("nothing to train after step ", step - 1, ", by early_stopping: ", early_stopping);
  else
    start_history();
  if (ranks.first()) tell_adapters();  // the warnings are the same on all ranks
  if (!run_.end_of_turn_warning.empty() && ranks.first()) log_warning(run_.end_of_turn_warning);
  tell_choices();
  if (history_) {
    const std::int64_t all = count_tensors(tensor_specs(model.setup())).parameters();
    log_info("training ", trainable_parameters(), model.choices().frozen.empty() ? "" : cat(" of ", all),
             " parameters in ", model.dtype(), ": from step ", step, " of ", total, " (the last is step ",
             total - 1, ")");
  }
  if (ranks.several()) log_info(ranks.text(run_.recipe.kernels));
  ranks.tell_tensor_plan(model.setup());
  if (profile_ && history_) profile_->announce(step, total);
}

void RunOutput::start_history() {
  const RunRanks& ranks = run_.ranks;
  history_.emplace(run_.recipe.checkpoint.checkpoint_dir, ranks.world().rank(),
                   [interpolated = run_.recipe.interpolated](std::string text) {
                     return message_for_file(std::move(text), interpolated);
                   });
  history_->set_steps_done(run_.state.step);
  if (!ranks.first()) return;
  history_->start({run_.state.step, run_.steps.total_steps, trainable_parameters(),
                   cat(run_.loaded.model->dtype()), ranks.world().size(),
                   ranks.several() ? ranks.text(run_.recipe.kernels) : ""});
}

void RunOutput::tell_adapters() const {
  if (!run_.recipe.peft) return;
  const ChosenAdapters chosen = recipe_adapters(run_.recipe, run_.loaded.model->setup());
  for (const std::string& line : chosen.lines) log_info(line);
  for (const std::string& warning : chosen.warnings) log_warning(warning);
  if (run_.loaded.base.empty())
    log_warning(
        "peft: the weights of the model are fresh, and no directory has them: the adapters in checkpoints "
        "are "
        "of use to this recipe alone");
}

void RunOutput::tell_choices() const {
  const Stack& model = *run_.loaded.model;
  for (const FrozenTensors::Line& line : frozen_tensors(model.setup(), run_.recipe.freeze).lines)
    log_info("freeze: ", quote(line.pattern), " fits ", counted(line.tensors, "tensor"), " with ",
             line.parameters, " parameters");
  if (const MtpTraining& mtp = model.choices().mtp; mtp.depths > 0)
    log_info("multi-token prediction: ", counted(mtp.depths, "depth"),
             mtp.repeated ? " of one repeated layer" : "", ", loss factor ", mtp.scaling_factor);
  if (const auto& c = run_.corruption) {
    const DiffusionTraining& diffusion = model.choices().diffusion;
    const bool blocks = diffusion.paradigm == Paradigm::block_diff;
    log_info("denoising: ",
             blocks ? cat("in blocks of ", counted(diffusion.block_size, "token"))
                    : std::string("both ways over each sequence"),
             "; noise by ", c->block_size ? cat("blocks of ", *c->block_size) : std::string("sequences"),
             ", mask token ", c->mask_token, ", weight of the noised tokens' loss ", c->weight);
  }
  if (run_.recipe.neftune.alpha > 0)
    log_info("neftune: uniform noise on the embeddings, alpha ", run_.recipe.neftune.alpha);
}

/// Of the whole model.
std::int64_t RunOutput::trainable_parameters() const {
  return count_tensors(tensor_specs(run_.loaded.model->setup())).trained();
}

bool RunOutput::before_step(std::int64_t step) { return profile_ && profile_->before_step(step); }

void RunOutput::set_steps_done(std::int64_t steps) {
  if (history_) history_->set_steps_done(steps);
}

void RunOutput::after_step(const TrainingRecord& record) {
  if (log_) log_->training(record);
  if (profile_) profile_->after_step(record.step, record.seconds);
}

void RunOutput::published(const Checkpoints::Published& checkpoint) {
  const auto& [path, steps, bytes, seconds] = checkpoint;
  if (log_) log_->keep_branch();
  log_info("checkpoint ", path.string(), ": ", transfer_text(bytes, seconds));
  if (history_ && run_.ranks.first()) history_->checkpoint(path.filename().string(), bytes, seconds);
}

void RunOutput::finish_profile() {
  if (profile_) profile_->finish();
}

void RunOutput::end(const RunResult& result) {
  if (history_ && run_.ranks.first()) history_->end(result.signal, summary(result), result.early_stopping);
}

}  // namespace nemocube
