#include "train/run/started_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/profile.h"
#include "train/assemble/diffusion_training.h"
#include "train/assemble/from_recipe.h"
#include "train/assemble/group_rule.h"
#include "train/checkpoint/shared_directory.h"
#include "train/cost/memory_report.h"
#include "train/datasets/chat_template.h"
#include "train/datasets/recipe_datasets.h"
#include "train/logging/run_log.h"
#include "train/model_io/base_model.h"
#include "train/ranks/inputs.h"
#include "train/run/carried_files.h"
#include "train/run/recipe_changes.h"
#include "train/run/tensorboard.h"

namespace nemocube {
namespace {

std::unique_ptr<RunLock> lock_directory(const Recipe& recipe, const RunRanks& ranks) {
  return ranks.first() ? std::make_unique<RunLock>(recipe.checkpoint.checkpoint_dir) : nullptr;
}

std::unique_ptr<TensorboardFolder> tensorboard_folder(const Recipe& recipe, const RunRanks& ranks) {
  const auto options = tensorboard_options(recipe);
  if (!ranks.first() || !options) return nullptr;
  return std::make_unique<TensorboardFolder>(options->folder, recipe.checkpoint.checkpoint_dir);
}

}  // namespace

StartedRun::StartedRun(Recipe wanted, const ModelConfig& config, const ParallelSettings& settings,
                       World& world, Device device)
    : recipe(std::move(wanted)),
      ranks(world, recipe.distributed, settings, device),
      lock(lock_directory(recipe, ranks)),  // before the directory is looked at
      tensorboard(tensorboard_folder(recipe, ranks)),
      loaded(recipe_model(recipe, config, ranks)),
      checkpoints(recipe.checkpoint, describe_for_file(recipe), &world, ranks.layout(*loaded.parallel)),
      from(find_checkpoint()),
      tokenizer(recipe_tokenizer(recipe, *recipe.dataset)),
      loader(training_data(), loader_options(recipe, ranks.dp_rank(), ranks.dp_size())),
      steps(schedule_steps(recipe, ranks.dp_size(), loader.batches_per_epoch())),
      schedule(make_schedule(recipe, steps.total_steps)),
      optimizer(loaded.model->parameters(), optimizer_options(*recipe.optimizer),
                group_rule(*recipe.optimizer, loaded.model->parameters())),
      validation(recipe, loaded.model->config(), ranks.world_group()),
      corruption(recipe_corruption(recipe, loaded.model->config(), *recipe.dataset)) {
  if (recipe.cuda_graphs && device.is_cuda()) {
    replay.emplace(*loaded.parallel);
    capacity = capacity_of_run(
        corrupted(batches_of_run(loader.dataset(), loader_options(recipe, ranks.dp_rank(), ranks.dp_size()),
                                 epochs_of(steps)),
                  corruption));
  }
  end_of_turn_warning = carry_files(recipe, tokenizer, loaded.model->config(), loaded.files.other_files);
  state.batch = batch_shape(recipe);
  note_rows();
  check_vocabulary(*recipe.dataset, tokenizer, loader.dataset(), loaded.model->config().vocab_size);
  resume();
  keep_schedule();
  ranks.check_pipeline_fill(*loaded.parallel, steps.microbatches);
  if (!ranks.first()) return;
  if (tensorboard) tensorboard->claim();
  warn_before_memory_runs_out();
}

/// The checkpoint to resume from. Then, before there are rows, the moment that they show.
std::optional<std::filesystem::path> StartedRun::find_checkpoint() {
  std::optional<std::filesystem::path> found;
  if (recipe.checkpoint.enabled)
    check_shared_directory(recipe.checkpoint.checkpoint_dir, ranks.world_group());
  if (recipe.checkpoint.enabled || recipe.checkpoint.restore_from) {
    const StorageTime longer(ranks.world(), most_checkpoint_bytes());
    const std::filesystem::path folder = recipe.checkpoint.checkpoint_dir;
    checkpoints.recover(lock && lock->held(),
                        [&](const std::filesystem::path& checkpoint, std::int64_t serial) {
                          RunLog::complete_branches(folder, serial);
                          return logged_losses(recipe, folder, CheckpointFolder::steps_in(checkpoint) - 1);
                        });
    found = checkpoints.find();
  }
  std::optional<Moment> moment;
  if (found && keeps_place()) moment = checkpoints.moment_of(*found);
  recipe.moment = moment ? *moment : moment_of_rank_0(ranks.world_group());
  return found;
}

std::shared_ptr<const Dataset> StartedRun::training_data() const {
  static Zone zone("start/data");
  const ZoneTimer timer(zone);
  // Ranks that read and tokenise parts of large files wait for the slowest.
  const StorageTime longer(ranks.world(), bytes_to_stream(*recipe.dataset).value_or(0));
  auto dataset =
      recipe_dataset(recipe, *recipe.dataset, tokenizer, &loaded.model->config(), true, ranks.world_group());
  want_same_data(ranks.world_group(), *recipe.dataset, *dataset);
  return dataset;
}

/// Whether a resumed run goes on at the checkpoint's place in the rows.
bool StartedRun::keeps_place() const { return !recipe.checkpoint.finetune && recipe.checkpoint.load_data; }

/// What the rows are made of, for the checkpoints of this run.
void StartedRun::note_rows() {
  state.rows = row_inputs(recipe, *recipe.dataset, loader.dataset());
  state.validation_rows = validation.rows();
  const auto for_file = [this](RowInputs& rows) {
    for (RowInput& input : rows) input.place = message_for_file(input.place, recipe.interpolated);
  };
  for_file(state.rows);
  for (auto& [name, rows] : state.validation_rows) for_file(rows);
  bool shown = shows_moment(recipe, *recipe.dataset);
  for (const auto& [name, section] : recipe.validation_datasets)
    shown = shown || shows_moment(recipe, section);
  if (!shown) return;
  state.moment = recipe.moment;
  if (ranks.first())
    log_info("chat templates show ", to_string(*recipe.moment),
             " as the present moment, as long as this run lasts");
}

void StartedRun::resume() {
  if (!from) return;
  const StorageTime longer(ranks.world(), most_checkpoint_bytes());  // ranks wait for the slowest check
  if (ranks.first() && !recipe.checkpoint.finetune) report_recipe_changes(*from, recipe);
  static Zone zone("start/checkpoint");
  const ZoneTimer timer(zone);
  const RunState own = state;
  try {
    state = checkpoints.load(*from, *loaded.model, optimizer);
    // Once the files are known to be intact.
    want_recorded_base(*from, loaded.base, ranks.world_group());
    loaded.parallel->data().spread_values();
    take_data_position(own);
  } catch (const OutOfMemory&) {
    throw;  // the checkpoint is not at fault
  } catch (const Error& e) {
    fail("cannot resume from ", from->string(), ": ", e.what(),
         "; for a new run name another checkpoint.checkpoint_dir, or remove this one");
  }
  log_info(recipe.checkpoint.finetune
               ? cat("new run with the weights of ", from->string())
               : cat("resumed from ", from->string(), ", which has ", counted(state.step, "step"), " done"));
}

// Of the checkpoint that the state comes from. `own`: of this run.
void StartedRun::take_data_position(const RunState& own) {
  const std::optional<BatchShape> written = std::exchange(state.batch, own.batch);
  const RowInputs written_rows = std::exchange(state.rows, own.rows);
  const auto written_validation = std::exchange(state.validation_rows, own.validation_rows);
  state.moment = own.moment;
  if (ranks.first() && !recipe.checkpoint.finetune)
    warn_of_other_rows(recipe, written_validation, state.validation_rows);
  if (!keeps_place()) {
    state.loader = loader.state();
    return;
  }
  if (written) want_same_batches(*written, *state.batch);
  if (!written_rows.empty()) want_same_rows(written_rows, state.rows);
  loader.restore(state.loader);
}

// A schedule goes on as it began, however many steps the run has now: another length would change the rate
// at once.
void StartedRun::keep_schedule() {
  if (!recipe.lr_scheduler) {
    state.schedule_length = 0;
    return;
  }
  if (state.schedule_length == 0) state.schedule_length = steps.total_steps;
  if (state.schedule_length == steps.total_steps) return;
  const LrSchedule of_now =
      std::exchange(schedule, make_schedule(recipe, state.schedule_length, LengthFrom::checkpoint));
  const std::int64_t per_step = schedule.options().per_step, next = schedule_position(),
                     last = next + std::max<std::int64_t>(0, steps.total_steps - state.step - 1) * per_step;
  const auto differ = [&](std::int64_t n) {
    return schedule.lr(n) != of_now.lr(n) || schedule.weight_decay(n) != of_now.weight_decay(n);
  };
  if (!ranks.first() || state.step >= steps.total_steps || (!differ(next) && !differ(last))) return;
  log_warning("the learning-rate schedule of the checkpoint goes on, which is for ",
              counted(state.schedule_length, "step"), ": step ", state.step, " has the rate ",
              schedule.lr(next), ", and with a schedule for the ", steps.total_steps,
              " steps of now it would have ", of_now.lr(next),
              recipe.lr_scheduler->lr_decay_steps
                  ? ""
                  : cat("; lr_scheduler.lr_decay_steps=", of_now.options().decay, " moves its end there"));
}

void StartedRun::warn_before_memory_runs_out() const {
  const Stack whole(loaded.model->setup(), loaded.model->dtype(), Device::meta);
  const auto memory = memory_of_run(recipe, whole, loader.dataset(), ranks.sizes(), loaded.model->device());
  const std::string warning =
      memory_warning(recipe, memory, whole.dtype(), ranks.sizes(), loaded.model->device());
  if (warning.empty()) return;
  log_info(memory_sentence(memory, ranks.sizes(), loaded.model->device()));
  log_warning(warning);
}

}  // namespace nemocube
