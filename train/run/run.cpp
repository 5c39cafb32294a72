#include "train/run/run.h"

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <tuple>

#include "core/allocator.h"
#include "core/log.h"
#include "core/profile.h"
#include "core/quote.h"
#include "core/trace.h"
#include "data/hf/hf_weights.h"
#include "parallel/comm/job/launch.h"
#include "parallel/comm/together.h"
#include "train/assemble/from_recipe.h"
#include "train/assemble/group_rule.h"
#include "train/assemble/run_batches.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/shared_directory.h"
#include "train/cost/memory_report.h"
#include "train/datasets/chat_template.h"
#include "train/datasets/recipe_datasets.h"
#include "train/finetune/frozen.h"
#include "train/logging/progress.h"
#include "train/logging/run_history.h"
#include "train/logging/run_log.h"
#include "train/model_io/base_model.h"
#include "train/profile/step_profile.h"
#include "train/ranks/inputs.h"
#include "train/ranks/run_ranks.h"
#include "train/recipe/files.h"
#include "train/run/recipe_changes.h"
#include "train/run/run_lock.h"
#include "train/run/signals.h"
#include "train/run/start_times.h"
#include "train/run/step_flops.h"
#include "train/run/tensorboard.h"
#include "train/run/tensorboard_folder.h"
#include "train/run/validation.h"
#include "train/schedule/lr_schedule.h"
#include "train/schedule/step_schedule.h"
#include "train/step/train_step.h"

namespace nemocube {
namespace {

using Clock = std::chrono::steady_clock;

/// One run: everything that lives from the first step to the last.
class Run {
 public:
  Run(const Recipe& recipe, const ModelConfig& config, const ParallelSettings& settings, World& world,
      Device device, const std::optional<StepRange>& profile)
      : recipe_(recipe),
        ranks_(world, recipe_.distributed, settings, device),
        lock_(lock_directory()),  // before the directory is looked at
        tensorboard_(tensorboard_folder()),
        loaded_(recipe_model(recipe, config, ranks_)),
        checkpoints_(recipe.checkpoint, describe_for_file(recipe), &world, ranks_.layout(*loaded_.parallel)),
        from_(find_checkpoint()),
        tokenizer_(recipe_tokenizer(recipe, *recipe.dataset)),
        loader_(training_data(), loader_options(recipe, ranks_.dp_rank(), ranks_.dp_size())),
        steps_(schedule_steps(recipe, ranks_.dp_size(), loader_.batches_per_epoch())),
        schedule_(make_schedule(recipe, steps_.total_steps)),
        optimizer_(loaded_.model->parameters(), optimizer_options(*recipe.optimizer),
                   group_rule(*recipe.optimizer, loaded_.model->parameters())),
        validation_(recipe_, loaded_.model->config(), ranks_.world_group()) {
    if (recipe.cuda_graphs && device.is_cuda()) {
      replay_.emplace(*loaded_.parallel);
      capacity_ = capacity_of_run(batches_of_run(
          loader_.dataset(), loader_options(recipe, ranks_.dp_rank(), ranks_.dp_size()), epochs_of(steps_)));
    }
    carry_tokenizer();
    carry_stop_ids();
    carry_end_of_turn();
    if (profile)
      profile_.emplace(*profile, ranks_, loaded_.groups.get(), recipe.checkpoint.checkpoint_dir,
                       recipe.cuda_graphs);
    state_.batch = batch_shape(recipe);
    note_rows();
    check_vocabulary(*recipe.dataset, tokenizer_, loader_.dataset(), loaded_.model->config().vocab_size);
    resume();
    keep_schedule();
    ranks_.check_pipeline_fill(*loaded_.parallel, steps_.microbatches);
    if (!ranks_.first()) return;
    if (tensorboard_) tensorboard_->claim();
    warn_before_memory_runs_out();
    std::vector<std::string> validation_sets;
    for (const auto& [name, section] : recipe.validation_datasets) validation_sets.push_back(name);
    log_.emplace(recipe.checkpoint.checkpoint_dir, validation_sets,
                 LogStart{state_.step, checkpoints_.next_serial(), checkpoints_.to_be_abandoned() > 0,
                          ranks_.several() ? ranks_.text(recipe.kernels) : "", state_.samples,
                          tensorboard_options(recipe)});
  }

  RunResult train() {
    SignalWatch signals(watched_signals(), ranks_.first() ? first_signal_text() : "");
    result_.first_step = state_.step;
    result_.total_steps = steps_.total_steps;
    count_known_validation();
    if (state_.step >= steps_.total_steps)
      log_info("nothing to train: ", counted(state_.step, "step"), " done, the recipe asks for ",
               steps_.total_steps);
    else if (stops_early())
      log_info("nothing to train after step ", state_.step - 1,
               ", by early_stopping: ", reason_of_end(*state_.early_stopping, *recipe_.early_stopping));
    else
      start_history();
    if (recipe_.peft && ranks_.first()) {  // the warnings are the same on all ranks
      const ChosenAdapters chosen = recipe_adapters(recipe_, loaded_.model->setup());
      for (const std::string& line : chosen.lines) log_info(line);
      for (const std::string& warning : chosen.warnings) log_warning(warning);
      if (loaded_.base.empty())
        log_warning(
            "peft: the weights of the model are fresh, and no directory has them: the adapters in "
            "checkpoints are "
            "of use to this recipe alone");
    }
    if (!end_of_turn_warning_.empty() && ranks_.first()) log_warning(end_of_turn_warning_);
    for (const FrozenTensors::Line& line : frozen_tensors(loaded_.model->setup(), recipe_.freeze).lines)
      log_info("freeze: ", quote(line.pattern), " fits ", counted(line.tensors, "tensor"), " with ",
               line.parameters, " parameters");
    if (const MtpTraining& mtp = loaded_.model->choices().mtp; mtp.depths > 0)
      log_info("multi-token prediction: ", counted(mtp.depths, "depth"),
               mtp.repeated ? " of one repeated layer" : "", ", loss factor ", mtp.scaling_factor);
    if (recipe_.neftune.alpha > 0)
      log_info("neftune: uniform noise on the embeddings, alpha ", recipe_.neftune.alpha);
    if (history_)
      log_info("training ", trainable_parameters(),
               loaded_.model->choices().frozen.empty() ? "" : cat(" of ", all_parameters()),
               " parameters in ", loaded_.model->dtype(), ": from step ", state_.step, " of ",
               steps_.total_steps, " (the last is step ", steps_.total_steps - 1, ")");
    if (ranks_.several()) log_info(ranks_.text(recipe_.kernels));
    if (profile_ && history_) profile_->announce(state_.step, steps_.total_steps);
    if (!launch_.stop_command.empty())
      log_info(
          launch_.stop_command,
          " ends this run with a checkpoint; SIGTERM or Ctrl-C to mpirun itself kills the ranks at once");
    // A signal that some rank has received is one for all: they stop after the same step.
    const auto asked = [&] {
      if (signal_ == 0) signal_ = static_cast<int>(ranks_.largest(signals.received()));
      return signal_ != 0;
    };
    stop_here_ = [&] { return signals.received() != 0; };
    prune_after_kill();
    bool complete = make_up_validation(asked);
    bool stopped = asked();
    StepProgress progress;
    last_record_ = Clock::now();
    while (state_.step < steps_.total_steps && !stopped && !stops_early()) {
      const std::int64_t step = state_.step;
      if (ranks_.first()) signals.set_second_text(second_signal_text(true));
      if (profile_ && profile_->before_step(step)) last_record_ = Clock::now();
      const TrainingRecord record = step == result_.first_step ? first_step() : one_step();
      progress.step({step, steps_.total_steps, record.epoch, record.loss, record.lr, *record.grad_norm,
                     record.tokens, record.skipped, record.experts.worst(), record.mtp_losses});
      stop_when_hopeless();
      note_published();
      stopped = asked();
      const bool validates = validation_.sets() > 0 && is_validation_step(steps_, step, stopped);
      if (stopped && validation_.sets() > 0 && is_validation_step(steps_, step)) complete = false;
      const bool saves = is_due(step, stopped);
      if (!saves && !validates) continue;
      // Save before validating: if a long validation is interrupted, the step is not lost.
      std::filesystem::path saved;
      if (saves) saved = save();
      if (ranks_.first()) signals.set_second_text(second_signal_text(false));
      if (validates) {
        const auto losses = validate(step, record.epoch, record.lr, asked);
        complete = losses.size() == validation_.sets();
        count_validation(step, losses);
        stopped = asked();
        if (!saves && (is_due(step, stopped) || (stops_early() && recipe_.checkpoint.enabled)))
          saved = save();
        if (!saved.empty() && !losses.empty()) checkpoints_.note_losses(saved, losses);
      }
      last_record_ = Clock::now();  // rates are those of training alone
    }
    if (profile_) profile_->finish();
    checkpoints_.finish();
    note_published();
    result_.steps_done = state_.step;
    result_.skipped_steps = state_.skipped_steps;
    const bool ends_early = state_.step < steps_.total_steps && stops_early();
    if (ends_early) result_.early_stopping = reason_of_end(*state_.early_stopping, *recipe_.early_stopping);
    const bool finished = (state_.step >= steps_.total_steps || ends_early) && complete;
    if (stopped && !finished) result_.signal = signal_;
    stop_here_ = {};
    if (history_ && ranks_.first()) history_->end(result_.signal, summary(result_), result_.early_stopping);
    return result_;
  }

 private:
  std::unique_ptr<RunLock> lock_directory() const {
    return ranks_.first() ? std::make_unique<RunLock>(recipe_.checkpoint.checkpoint_dir) : nullptr;
  }

  std::unique_ptr<TensorboardFolder> tensorboard_folder() const {
    const auto options = tensorboard_options(recipe_);
    if (!ranks_.first() || !options) return nullptr;
    return std::make_unique<TensorboardFolder>(options->folder, recipe_.checkpoint.checkpoint_dir);
  }

  // Watch SIGINT as well as the signals that the recipe names: a person at a terminal loses nothing by
  // Ctrl-C. mpirun passes SIGUSR1 on, and goes on itself: it asks for the same where mpirun would not let
  // ranks end by themselves.
  std::vector<int> watched_signals() const {
    std::vector<int> signals = recipe_.step_scheduler.preemption_signals;
    signals.push_back(SIGINT);
    if (launch_.by_mpirun()) signals.push_back(SIGUSR1);
    return signals;
  }

  void start_history() {
    history_.emplace(recipe_.checkpoint.checkpoint_dir, ranks_.world().rank(),
                     [interpolated = recipe_.interpolated](std::string text) {
                       return message_for_file(std::move(text), interpolated);
                     });
    history_->set_steps_done(state_.step);
    if (!ranks_.first()) return;
    history_->start({state_.step, steps_.total_steps, trainable_parameters(), cat(loaded_.model->dtype()),
                     ranks_.world().size(), ranks_.several() ? ranks_.text(recipe_.kernels) : ""});
  }

  /// Of the whole model.
  std::int64_t all_parameters() const {
    return count_tensors(tensor_specs(loaded_.model->setup())).parameters();
  }
  std::int64_t trainable_parameters() const {
    return count_tensors(tensor_specs(loaded_.model->setup())).trained();
  }

  std::int64_t most_checkpoint_bytes() const {
    return checkpoint_bytes(loaded_.model->setup(), loaded_.model->dtype());
  }

  std::string first_signal_text() const {
    return cat(
        "stopping when this step is done",
        recipe_.checkpoint.enabled ? " and saved" : "; checkpoint.enabled is false, so nothing is saved",
        "; a second signal stops at once");
  }

  // Composed whenever it changes, because a signal handler cannot format. `running`: a step is under way.
  std::string second_signal_text(bool running) const {
    const std::int64_t last = running ? state_.step : state_.step - 1;
    return cat("stopped at once: ",
               last < saved_steps_    ? "no step is lost"
               : last == saved_steps_ ? cat("step ", last, " is lost")
                                      : cat("steps ", saved_steps_, " to ", last, " are lost"),
               result_.checkpoint.empty() ? "; there is no checkpoint"
                                          : cat("; the newest checkpoint is ", result_.checkpoint.string()));
  }

  void warn_before_memory_runs_out() const {
    const Stack whole(loaded_.model->setup(), loaded_.model->dtype(), Device::meta);
    const auto memory =
        memory_of_run(recipe_, whole, loader_.dataset(), ranks_.sizes(), loaded_.model->device());
    const std::string warning =
        memory_warning(recipe_, memory, whole.dtype(), ranks_.sizes(), loaded_.model->device());
    if (warning.empty()) return;
    log_info(memory_sentence(memory, ranks_.sizes(), loaded_.model->device()));
    log_warning(warning);
  }

  // A model trained with a tokenizer from elsewhere is saved with it.
  void carry_tokenizer() {
    if (!tokenizer_) return;
    auto& files = loaded_.files.other_files;
    std::erase_if(files, [](const auto& file) { return is_tokenizer_file(file.first); });
    files.merge(tokenizer_files(recipe_, *recipe_.dataset));
  }

  /// The checkpoint to resume from. Then, before there are rows, the moment that they show.
  std::optional<std::filesystem::path> find_checkpoint() {
    std::optional<std::filesystem::path> from;
    if (recipe_.checkpoint.enabled)
      check_shared_directory(recipe_.checkpoint.checkpoint_dir, ranks_.world_group());
    if (recipe_.checkpoint.enabled || recipe_.checkpoint.restore_from) {
      const StorageTime longer(ranks_.world(), most_checkpoint_bytes());
      const std::filesystem::path folder = recipe_.checkpoint.checkpoint_dir;
      checkpoints_.recover(
          lock_ && lock_->held(), [&](const std::filesystem::path& checkpoint, std::int64_t serial) {
            RunLog::complete_branches(folder, serial);
            return logged_losses(recipe_, folder, CheckpointFolder::steps_in(checkpoint) - 1);
          });
      from = checkpoints_.find();
    }
    std::optional<Moment> moment;
    if (from && keeps_place()) moment = checkpoints_.moment_of(*from);
    recipe_.moment = moment ? *moment : moment_of_rank_0(ranks_.world_group());
    return from;
  }

  /// Whether a resumed run goes on at the checkpoint's place in the rows.
  bool keeps_place() const { return !recipe_.checkpoint.finetune && recipe_.checkpoint.load_data; }

  /// What the rows are made of, for the checkpoints of this run.
  void note_rows() {
    state_.rows = row_inputs(recipe_, *recipe_.dataset, loader_.dataset());
    state_.validation_rows = validation_.rows();
    const auto for_file = [this](RowInputs& rows) {
      for (RowInput& input : rows) input.place = message_for_file(input.place, recipe_.interpolated);
    };
    for_file(state_.rows);
    for (auto& [name, rows] : state_.validation_rows) for_file(rows);
    bool shown = shows_moment(recipe_, *recipe_.dataset);
    for (const auto& [name, section] : recipe_.validation_datasets)
      shown = shown || shows_moment(recipe_, section);
    if (!shown) return;
    state_.moment = recipe_.moment;
    if (ranks_.first())
      log_info("chat templates show ", to_string(*recipe_.moment),
               " as the present moment, as long as this run lasts");
  }

  // A run that begins with an adapter goes on with the ids that end its texts.
  void carry_stop_ids() {
    const ModelAndAdapter begun = model_and_adapter(recipe_);
    if (begun.generation_folder() == begun.model) return;
    constexpr const char* name = "generation_config.json";
    auto own = read_companion_files(begun.generation_folder());
    if (const auto found = own.find(name); found != own.end())
      loaded_.files.other_files[name] = std::move(found->second);
  }

  // Chat rows may teach the model to end its turns with a token that does not end its texts yet.
  void carry_end_of_turn() {
    if (!tokenizer_) return;
    const ModelConfig& config = loaded_.model->config();
    auto end = recipe_end_of_turn(recipe_, *recipe_.dataset, *tokenizer_, config);
    if (!end) return;
    end_of_turn_warning_ = end->warning(*recipe_.dataset, *tokenizer_);
    end->stop_ids.push_back(end->id);
    std::string& text = loaded_.files.other_files["generation_config.json"];
    text = with_end_of_text_ids(text, config, end->stop_ids);
  }

  void resume() {
    if (!from_) return;
    const StorageTime longer(ranks_.world(), most_checkpoint_bytes());  // ranks wait for the slowest check
    if (ranks_.first() && !recipe_.checkpoint.finetune) report_recipe_changes(*from_, recipe_);
    static Zone zone("start/checkpoint");
    const ZoneTimer timer(zone);
    const RunState own = state_;
    try {
      state_ = checkpoints_.load(*from_, *loaded_.model, optimizer_);
      // Once the files are known to be intact.
      want_recorded_base(*from_, loaded_.base, ranks_.world_group());
      loaded_.parallel->data().spread_values();
      take_data_position(own);
    } catch (const OutOfMemory&) {
      throw;  // the checkpoint is not at fault
    } catch (const Error& e) {
      fail("cannot resume from ", from_->string(), ": ", e.what(),
           "; for a new run name another checkpoint.checkpoint_dir, or remove this one");
    }
    log_info(recipe_.checkpoint.finetune ? cat("new run with the weights of ", from_->string())
                                         : cat("resumed from ", from_->string(), ", which has ",
                                               counted(state_.step, "step"), " done"));
    result_.checkpoint = *from_;
    saved_steps_ = state_.step;
  }

  // A schedule goes on as it began, however many steps the run has now: another length would change the rate
  // at once.
  void keep_schedule() {
    if (!recipe_.lr_scheduler) {
      state_.schedule_length = 0;
      return;
    }
    if (state_.schedule_length == 0) state_.schedule_length = steps_.total_steps;
    if (state_.schedule_length == steps_.total_steps) return;
    const LrSchedule of_now =
        std::exchange(schedule_, make_schedule(recipe_, state_.schedule_length, LengthFrom::checkpoint));
    const std::int64_t per_step = schedule_.options().per_step, next = schedule_position(),
                       last =
                           next + std::max<std::int64_t>(0, steps_.total_steps - state_.step - 1) * per_step;
    const auto differ = [&](std::int64_t n) {
      return schedule_.lr(n) != of_now.lr(n) || schedule_.weight_decay(n) != of_now.weight_decay(n);
    };
    if (!ranks_.first() || state_.step >= steps_.total_steps || (!differ(next) && !differ(last))) return;
    log_warning("the learning-rate schedule of the checkpoint goes on, which is for ",
                counted(state_.schedule_length, "step"), ": step ", state_.step, " has the rate ",
                schedule_.lr(next), ", and with a schedule for the ", steps_.total_steps,
                " steps of now it would have ", of_now.lr(next),
                recipe_.lr_scheduler->lr_decay_steps
                    ? ""
                    : cat("; lr_scheduler.lr_decay_steps=", of_now.options().decay, " moves its end there"));
  }

  // Of the checkpoint that state_ comes from. `own`: of this run.
  void take_data_position(const RunState& own) {
    const std::optional<BatchShape> written = std::exchange(state_.batch, own.batch);
    const RowInputs written_rows = std::exchange(state_.rows, own.rows);
    const auto written_validation = std::exchange(state_.validation_rows, own.validation_rows);
    state_.moment = own.moment;
    if (ranks_.first() && !recipe_.checkpoint.finetune)
      warn_of_other_rows(recipe_, written_validation, state_.validation_rows);
    if (!keeps_place()) {
      state_.loader = loader_.state();
      return;
    }
    if (written) want_same_batches(*written, *state_.batch);
    if (!written_rows.empty()) want_same_rows(written_rows, state_.rows);
    loader_.restore(state_.loader);
  }

  void prune_after_kill() const {
    if (!recipe_.checkpoint.enabled) return;
    const StorageTime longer(ranks_.world(), most_checkpoint_bytes());  // rank 0 alone removes files
    checkpoints_.prune();
  }

  bool stops_early() const {
    return recipe_.early_stopping && has_ended(state_.early_stopping, *recipe_.early_stopping);
  }

  /// Counts the validation after `step` for early stopping, if the losses are those of all sets.
  void count_validation(std::int64_t step, const Losses& losses) {
    if (!recipe_.early_stopping || losses.size() < validation_.sets()) return;
    state_.early_stopping = counted_validation(std::move(state_.early_stopping), *recipe_.early_stopping,
                                               step, losses.at(recipe_.early_stopping->metric));
  }

  // A checkpoint is saved before its step is validated, so the loaded state lacks that validation. This
  // counts it from the losses on disk, if there is one of each set. A recipe without early_stopping drops the
  // count.
  void count_known_validation() {
    if (!recipe_.early_stopping) {
      state_.early_stopping.reset();
      return;
    }
    const std::int64_t step = state_.step - 1;
    if (step >= 0 && is_validation_step(steps_, step)) count_validation(step, known_losses(step));
  }

  // Validates after the last step before this start, where that was due and an earlier process did not finish
  // it. False when a signal ended this validation too.
  bool make_up_validation(const StopAsked& asked) {
    const std::int64_t step = state_.step - 1;
    if (step < 0 || validation_.sets() == 0 || !is_validation_step(steps_, step)) return true;
    const std::filesystem::path folder = recipe_.checkpoint.checkpoint_dir;
    const Losses known = known_losses(step);
    if (known.size() == validation_.sets()) return true;
    log_info("validation after step ", step, " is missing and comes first");
    const Losses losses =
        validate(step, state_.loader.epoch, schedule_.lr(schedule_position()), asked, known);
    // A checkpoint elsewhere belongs to another run.
    std::error_code error;
    if (recipe_.checkpoint.enabled && !losses.empty() &&
        std::filesystem::equivalent(result_.checkpoint.parent_path(), folder, error))
      checkpoints_.note_losses(result_.checkpoint, losses);
    count_validation(step, losses);
    return losses.size() == validation_.sets();
  }

  Losses validate(std::int64_t step, std::int64_t epoch, double lr, const StopAsked& asked,
                  const Losses& known = {}) {
    const trace::Span span(trace::Category::validation, "validation", {{"step", step}});
    return validation_.run(*loaded_.parallel, {step, epoch, lr, state_.samples, log_ ? &*log_ : nullptr},
                           {asked, stop_here_}, known);
  }

  // As rank 0 finds them in files that change while it runs.
  Losses known_losses(std::int64_t step) const {
    Losses known;
    if (ranks_.first())
      known = validation_.known_losses(result_.checkpoint, recipe_.checkpoint.checkpoint_dir, step);
    if (!ranks_.several()) return known;
    std::string names;
    for (const auto& [name, loss] : known) names += name + "\n";
    std::istringstream all(broadcast_text(ranks_.world_group(), names));
    for (std::string name; std::getline(all, name);) known.emplace(name, 0);
    for (auto& [name, loss] : known) loss = ranks_.sum(ranks_.first() ? loss : 0);
    return known;
  }

  bool is_due(std::int64_t step, bool stopped) const {
    return recipe_.checkpoint.enabled && is_checkpoint_step(steps_, step, stopped);
  }

  std::filesystem::path save() {
    const trace::Span span(trace::Category::checkpoint, "checkpoint", {{"step", state_.step - 1}});
    const StorageTime longer(ranks_.world(), most_checkpoint_bytes());  // rank 0 alone publishes and prunes
    if (lock_) lock_->renew_if_lost();
    std::filesystem::path saved = checkpoints_.save(loaded_, optimizer_, state_);
    note_published();
    return saved;
  }

  // Checkpoints that have become complete since the last call.
  void note_published() {
    for (const auto& [path, steps, bytes, seconds] : checkpoints_.take_published()) {
      result_.checkpoint = path;
      saved_steps_ = steps;
      if (log_) log_->keep_branch();
      log_info("checkpoint ", path.string(), ": ", transfer_text(bytes, seconds));
      if (history_ && ranks_.first()) history_->checkpoint(path.filename().string(), bytes, seconds);
    }
  }

  std::shared_ptr<const Dataset> training_data() const {
    static Zone zone("start/data");
    const ZoneTimer timer(zone);
    // Ranks that read and tokenise parts of large files wait for the slowest.
    const StorageTime longer(ranks_.world(), bytes_to_stream(*recipe_.dataset).value_or(0));
    auto dataset = recipe_dataset(recipe_, *recipe_.dataset, tokenizer_, &loaded_.model->config(), true,
                                  ranks_.world_group());
    want_same_data(ranks_.world_group(), *recipe_.dataset, *dataset);
    return dataset;
  }

  TrainingRecord first_step() {
    TrainingRecord record;
    {
      static Zone zone("start/first step", false);
      const ZoneTimer timer(zone);
      record = one_step();
    }
    const std::string text = start_text(ranks_.world_group());
    if (ranks_.first()) log_info(text);
    return record;
  }

  std::vector<TokenBatch> next_microbatches(TrainingRecord& record) {
    const trace::Span span(trace::Category::data, "load batches");
    if (loader_.epoch_done()) loader_.start_epoch(loader_.epoch() + 1);
    const auto begin = Clock::now();
    record.epoch = loader_.epoch();
    const std::vector<Batch> batches = loader_.next_group(steps_.microbatches);
    for (const Batch& batch : batches) {
      record.positions += batch.positions;
      record.content_tokens += batch.content_tokens;
      record.tokens += batch.tail_trimmed_tokens;
      record.label_tokens += batch.label_tokens;
      record.samples += batch.samples;
    }
    std::vector<TokenBatch> microbatches = batches_of_step(recipe_, batches);
    if (replay_)
      for (TokenBatch& tokens : microbatches) tokens = capacity_.fit(std::move(tokens));
    record.times = StepTimes{.data = std::chrono::duration<double>(Clock::now() - begin).count()};
    return microbatches;
  }

  TrainingRecord one_step() {
    const trace::Span span(trace::Category::step, "step", {{"step", state_.step}});
    Allocator& memory = allocator(loaded_.model->device());
    memory.reset_peak();
    const CommStats communicated = communication();
    TrainingRecord record;
    record.step = state_.step;
    const std::vector<TokenBatch> microbatches = next_microbatches(record);
    sum_over_ranks(record);
    const std::int64_t n = schedule_position();
    StepOptions options;
    options.lr = schedule_.lr(n);
    options.weight_decay = schedule_.weight_decay(n);
    options.max_norm = recipe_.clip_grad_norm.max_norm;
    options.expert_bias_rate = recipe_.model->moe.expert_bias_update_rate;
    options.kernels = &recipe_.kernels;
    options.replay = replay_ ? &*replay_ : nullptr;
    const StepResult result = train_step(*loaded_.parallel, optimizer_, microbatches, options);

    const bool updated = result.outcome == StepOutcome::updated;
    ++state_.step;
    if (history_) history_->set_steps_done(state_.step);
    state_.scheduler_steps += updated;
    state_.optimizer_steps = optimizer_.steps();
    state_.samples += record.samples;
    state_.skipped_steps += !updated;
    state_.nonfinite_in_a_row = result.outcome == StepOutcome::non_finite ? state_.nonfinite_in_a_row + 1 : 0;
    state_.loader = loader_.state();

    record.loss = result.loss;
    record.grad_norm = result.grad_norm;
    record.lr = schedule_.lr(schedule_position());
    record.peak_bytes = ranks_.largest(memory.stats().peak_bytes);
    record.ranks = ranks_.world().size();
    record.skipped = !updated;
    record.skipped_steps = state_.skipped_steps;
    if (!result_.first_loss) result_.first_loss = result.loss;
    result_.last_loss = result.loss;
    result_.tokens += record.tokens;
    record.mtp_losses = result.mtp_losses;
    record.auxiliary_losses = result.auxiliary_losses;
    if (logs_experts()) record.experts = expert_record(result.expert_counts);
    const auto now = Clock::now();
    record.seconds = std::chrono::duration<double>(now - last_record_).count();
    result_.seconds += record.seconds;
    last_record_ = now;
    record.consumed_samples = state_.samples;
    record.mean_auxiliary_losses =
        mean_auxiliary_losses(recipe_.model->moe, loaded_.model->setup(), result.auxiliary_losses);
    const auto& peak = recipe_.mfu.peak_tflops;
    if (counts_flops() && result.outcome != StepOutcome::no_labels)
      record.flops =
          loaded_.parallel->sum(counts_batches() ? step_flops(loaded_.model->setup(), microbatches) : 0);
    if (peak && record.seconds > 0 && result.outcome != StepOutcome::no_labels)
      record.mfu = record.flops / (record.seconds * *peak * 1e12 * record.ranks) * 100;
    note_communication(*record.times, communicated);
    if (lock_) lock_->renew_if_lost();
    if (log_) log_->training(record);
    if (profile_) profile_->after_step(record.step, record.seconds);
    if (!result.not_finite.empty()) fail_not_finite(result.not_finite);
    return record;
  }

  // Nobody waits for NCCL here: that would slow the step down.
  CommStats communication() const {
    return ranks_.world().uses_nccl() ? CommStats{} : ranks_.total_stats(*loaded_.groups);
  }

  void note_communication(StepTimes& times, const CommStats& before) const {
    if (!ranks_.several() || ranks_.world().uses_nccl()) return;
    const CommStats now = communication();
    times.communication = now.seconds - before.seconds;
    times.waiting = now.waiting_seconds - before.waiting_seconds;
  }

  bool logs_experts() const {
    const DistributedSection& d = recipe_.distributed;
    return recipe_.moe_metrics.enabled.value_or(d.ep_size * d.expert_tp_size > 1);
  }

  bool counts_flops() const {
    return recipe_.mfu.peak_tflops || (recipe_.tensorboard && recipe_.tensorboard->log_throughput);
  }

  // The ranks of a replica get the same batches, which count once.
  bool counts_batches() const { return loaded_.parallel->first_of_replica(); }

  void sum_over_ranks(TrainingRecord& record) const {
    std::array counts{record.positions, record.content_tokens, record.tokens, record.label_tokens,
                      record.samples};
    if (!counts_batches()) counts = {};
    loaded_.parallel->sum(counts);
    std::tie(record.positions, record.content_tokens, record.tokens, record.label_tokens, record.samples) =
        std::tuple_cat(counts);
  }

  std::int64_t schedule_position() const { return state_.scheduler_steps * schedule_.options().per_step; }

  [[noreturn]] void fail_not_finite(const std::string& tensor) const {
    fail("step ", state_.step - 1, ": the update wrote numbers that are not finite into '", tensor,
         "' (the weights or what the optimizer keeps for them), so the model is lost and not saved; ",
         result_.checkpoint.empty() ? "there is no checkpoint to go back to"
                                    : cat("the last good checkpoint, with ", counted(saved_steps_, "step"),
                                          " done, is ", result_.checkpoint.string()),
         ". Lower optimizer.lr, or look at optimizer.eps, weight decay and gradient clipping");
  }

  void stop_when_hopeless() const {
    const std::int64_t most = recipe_.step_scheduler.max_nonfinite_steps;
    if (most == 0 || state_.nonfinite_in_a_row < most) return;
    fail("step ", state_.step - 1, ": loss or gradient norm was not finite in ", counted(most, "step"),
         " in a row (step_scheduler.max_nonfinite_steps); no weight changed in them. Lower optimizer.lr or "
         "look at the data");
  }

  Recipe recipe_;  // with the moment of the run
  RunRanks ranks_;
  std::unique_ptr<RunLock> lock_;                   // on rank 0
  std::unique_ptr<TensorboardFolder> tensorboard_;  // on rank 0 of a run that writes event files
  LoadedModel loaded_;
  Checkpoints checkpoints_;
  const std::optional<std::filesystem::path> from_;  // the checkpoint to resume from
  std::optional<Tokenizer> tokenizer_;
  Loader loader_;
  StepSchedule steps_;
  LrSchedule schedule_;
  Optimizer optimizer_;
  std::optional<StepReplay> replay_;  // where steps are to use CUDA graphs
  BatchCapacity capacity_;            // of microbatches then
  Validation validation_;
  RunState state_;
  std::optional<RunLog> log_;          // on rank 0
  std::optional<RunHistory> history_;  // where there are steps to train
  std::optional<StepProfile> profile_;
  int signal_ = 0;                   // that the ranks agree on
  std::string end_of_turn_warning_;  // of carry_end_of_turn()
  const Launch launch_ = read_launch();
  StopAsked stop_here_;  // without asking other ranks
  RunResult result_;
  std::int64_t saved_steps_ = 0;  // steps done in result_.checkpoint
  Clock::time_point last_record_;
};

}  // namespace

RunResult run_training(const Recipe& recipe, const ParallelSettings& settings, World& world, Device device,
                       const std::optional<StepRange>& profile) {
  check_kernel_choice(recipe.kernels, device);
  want_same_inputs(world, recipe, RecipeUse::train);  // before the ranks form groups
  const ModelConfig config = config_of_model(recipe);
  try {
    return Run(recipe, config, settings, world, device, profile).train();
  } catch (const OutOfMemory& e) {
    const std::string need = explain_memory(recipe, config, world.size(), device);
    throw OutOfMemory(cat(e.what(), need.empty() ? "" : "; ", need));
  }
}

}  // namespace nemocube
