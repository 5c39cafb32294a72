#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/log.h"
#include "core/memory_limit.h"
#include "core/trace.h"
#include "core/version.h"
#include "data/files/link.h"
#include "data/files/staging_directory.h"
#include "data/peft/write_peft.h"
#include "parallel/comm/job_queue.h"
#include "parallel/comm/together.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/intact.h"
#include "train/checkpoint/optimizer_files.h"
#include "train/checkpoint/restore.h"
#include "train/logging/progress.h"
#include "train/model_io/adapter_io.h"
#include "train/model_io/base_model.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

// The name of a checkpoint of this directory, else its path.
std::string name_in(const fs::path& dir, const fs::path& checkpoint) {
  std::error_code none;
  return fs::equivalent(checkpoint.parent_path(), dir, none) ? checkpoint.filename().string()
                                                             : checkpoint.string();
}

// The same text on all ranks: those of filesystem_error name paths in the way of the library.
std::string on_disk(Communicator* ranks, const std::function<std::string()>& work) {
  return text_of_rank_0(ranks, [&] {
    try {
      return work();
    } catch (const fs::filesystem_error& e) {
      fail("cannot be written: ", e.code().message());
    }
  });
}

/// PEFT's directory: the adapters, the record of their base, the tokenizer's files, and the ids that end a
/// text (generation_config.json, which other programs look for in the base alone).
FileSums save_adapters(const fs::path& directory, const Snapshot& snapshot, ExpertForm experts,
                       Communicator* ranks) {
  PeftWriteOptions options;
  options.experts = experts;
  options.names = snapshot.names;
  if (!snapshot.base.empty()) options.base_model_name_or_path = snapshot.base;
  if (const auto& record = snapshot.base_record) {
    options.other_files.emplace(base_model_file, base_model_text(*record));
    if (is_in_hub_cache(*record)) {
      options.base_model_name_or_path = record->name;
      options.revision = record->revision;
    }
  }
  for (const auto& [name, contents] : snapshot.files->other_files)
    if (name != "config.json") options.other_files.emplace(name, contents);
  if (!snapshot.settings.empty()) options.other_files.emplace(automodel_config_name, snapshot.settings);
  return write_peft_directory(directory, gather_adapters(snapshot.weights, ranks), snapshot.adapters, options,
                              ranks);
}

}  // namespace

Checkpoints::Checkpoints(const CheckpointSection& section, std::string resolved_recipe, World* world,
                         const RankLayout& layout)
    : section_(section),
      folder_(section.checkpoint_dir, section.best_metric_key),
      resolved_recipe_(std::move(resolved_recipe)),
      world_(world && world->size() > 1 ? world : nullptr),
      ranks_(world_ ? &world_->communicator() : nullptr),
      layout_(layout.ranks() > 1 ? layout : RankLayout{}) {
  const int size = ranks_ ? ranks_->size() : 1;
  expect(layout_.ranks() == size, "checkpoints of ", layout_.ranks(), " ranks on ", size);
}

/// The thread that writes checkpoints while training goes on.
struct Checkpoints::Background {
  std::unique_ptr<Communicator> ranks;  // of the threads; null: one rank
  JobQueue queue{"nemocube:save"};
  std::deque<Work> begun;  // that take_published() has not seen to be done
};

Checkpoints::~Checkpoints() {
  if (!background_) return;
  const auto all_done = [&] {
    return std::ranges::all_of(background_->begun, [](const Work& work) { return work.done(); });
  };
  if (std::uncaught_exceptions() == 0 || all_done()) return;
  log_info("the checkpoint that is being written is completed first");
  if (!world_) return;
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> limit(world_->timeout_seconds());
  while (!all_done() && std::chrono::steady_clock::now() - start < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (!all_done()) world_->give_up_waiting();
}

std::int64_t checkpoint_bytes(const ModelSetup& setup, DType dtype) {
  const std::int64_t wide = size_of(accumulate_dtype(dtype));
  const bool adapters = !setup.choices.lora.modules.empty();
  std::int64_t bytes = 0;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    const std::int64_t elements = spec.shape.numel();
    if (!adapters) bytes += elements * (spec.keep_f32 ? wide : size_of(dtype));
    if (!spec.frozen) bytes += elements * (adapters ? 4 : 3) * wide;
  }
  return bytes;
}

fs::path Checkpoints::save(const LoadedModel& model, const Optimizer& optimizer, const RunState& state) {
  const fs::path target = folder_.dir() / CheckpointFolder::name_of(state);
  if (section_.is_async && !background_) {
    background_ = std::make_unique<Background>();
    const std::int64_t bytes = checkpoint_bytes(model.model->setup(), model.model->dtype());
    if (world_) background_->ranks = world_->background_group("checkpoint", bytes);
  }
  finish();
  Snapshot snapshot = snapshot_of(model, optimizer, state, ranks_, section_.save_frozen);
  if (background_) {
    const auto start = std::chrono::steady_clock::now();
    const trace::Span span(trace::Category::checkpoint, "copy of the tensors", {{"step", state.step - 1}});
    snapshot = copy_of(std::move(snapshot));
    const auto taken =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
    log_info("checkpoint ", target.string(), ": copied ", bytes_text(snapshot.bytes()), " in ", taken.count(),
             " ms; a thread writes the copy");
  }
  do_or_queue([this, target, held = std::make_shared<const Snapshot>(std::move(snapshot))](
                  Communicator* ranks) { write(*held, target, ranks); });
  return target;
}

void Checkpoints::do_or_queue(std::function<void(Communicator* ranks)> work) {
  if (!background_) return work(ranks_);
  background_->begun.push_back(
      background_->queue.start([work = std::move(work), ranks = background_->ranks.get()] { work(ranks); }));
}

void Checkpoints::finish() {
  if (!background_) return;
  if (!background_->begun.empty() && !background_->begun.front().done())
    log_info("waiting for the checkpoint that is being written");
  for (Work& work : background_->begun) work.wait();
  background_->begun.clear();
}

std::vector<Checkpoints::Published> Checkpoints::take_published() {
  while (background_ && !background_->begun.empty() && background_->begun.front().done()) {
    background_->begun.front().wait();
    background_->begun.pop_front();
  }
  const std::lock_guard lock(published_mutex_);
  return std::exchange(published_, {});
}

void Checkpoints::write(const Snapshot& snapshot, const fs::path& target, Communicator* ranks) {
  const trace::Span span(trace::Category::checkpoint, "write checkpoint",
                         {{"step", snapshot.state.step - 1}});
  Origin origin{std::string(version()), 0, parent_.name, parent_.steps};
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t bytes = 0;  // on rank 0
  try {
    std::optional<StagingDirectory> staging;  // on rank 0
    const fs::path place = on_disk(ranks, [&] {
      origin.serial = next_serial();
      staging.emplace(target);
      return staging->path().string();
    });
    SaveOptions options;
    options.dtype = snapshot.dtype;
    std::optional<TaskProgress> progress;
    const auto show = [&](const char* what) {
      progress.reset();
      if (background_) return OnBytes();  // training shows its own
      return OnBytes(std::ref(progress.emplace(cat("saving ", what), "bytes")));
    };
    options.on_bytes = show("weights");
    FileSums sums;
    const FileSums of_model =
        snapshot.adapters.modules.empty()
            ? save_hf_weights(place / "model", snapshot.weights, *snapshot.files, options, ranks)
            : save_adapters(place / "model", snapshot,
                            section_.v4_compatible ? ExpertForm::per_expert : ExpertForm::stacked, ranks);
    for (const auto& [name, sum] : of_model) sums["model/" + name] = sum;
    on_disk(ranks, [&] { return fs::create_directory(place / "optim"), std::string(); });
    for (auto& [name, sum] :
         save_optimizer(place / "optim", snapshot.optimizer_state, ranks, show("optimizer")))
      sums["optim/" + name] = sum;
    progress.reset();
    on_disk(ranks, [&] {
      sums["state.json"] = write_run_state(place / "state.json", snapshot.state, origin, layout_);
      sums["config.yaml"] = write_file_atomically(place / "config.yaml", resolved_recipe_);
      write_checksums(place, sums);
      for (const auto& [name, sum] : sums) bytes += sum.bytes;
      folder_.publish(*staging, target, origin);
      return std::string();
    });
  } catch (const Error& e) {
    fail("checkpoint ", target.string(), ": ", e.what());
  }
  parent_ = {target.filename().string(), snapshot.state.step, origin.serial};
  {
    const std::lock_guard lock(published_mutex_);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    published_.push_back({target, snapshot.state.step, bytes, taken.count()});
  }
  prune(ranks);
}

void Checkpoints::prune() const { prune(ranks_); }

void Checkpoints::prune(Communicator* ranks) const {
  on_rank_0(ranks, [&] {
    const bool here = !parent_.name.empty() && !fs::path(parent_.name).has_parent_path();
    if (section_.max_recent_checkpoints && here && folder_.later_than(parent_.steps).empty())
      folder_.prune(*section_.max_recent_checkpoints, folder_.dir() / parent_.name);
  });
}

void Checkpoints::note_losses(const fs::path& checkpoint, const std::map<std::string, double>& losses) {
  do_or_queue([this, checkpoint, losses](Communicator* ranks) {
    on_rank_0(ranks, [&] { folder_.note_losses(checkpoint, losses); });
  });
}

void Checkpoints::recover(bool locked, const LoggedLosses& logged) const {
  on_rank_0(ranks_, [&] {
    if (locked) folder_.recover(logged);
  });
}

std::optional<fs::path> Checkpoints::find() const {
  const std::string found = text_of_rank_0(ranks_, [&] { return find_here().string(); });
  return found.empty() ? std::nullopt : std::optional<fs::path>(found);
}

fs::path Checkpoints::find_here() const {
  if (!section_.restore_from) return folder_.newest().value_or(fs::path());
  const fs::path named = *section_.restore_from;
  for (const fs::path& candidate : {through_links(folder_.dir() / named), through_links(named)})
    if (fs::exists(candidate / "state.json")) return fs::canonical(candidate);
  fail("checkpoint.restore_from: no checkpoint '", named.string(), "', neither in ", folder_.dir().string(),
       " nor as a path");
}

void Checkpoints::report_layout(const fs::path& checkpoint) const {
  const RankLayout written = read_rank_layout(checkpoint / "state.json");
  if (written == layout_) return;
  log_info(checkpoint.string(), " was written by ", to_string(written), ", this run has ", to_string(layout_),
           ": each rank takes its part");
}

std::optional<Moment> Checkpoints::moment_of(const fs::path& checkpoint) const {
  const std::string found = text_of_rank_0(ranks_, [&]() -> std::string {
    try {
      const auto moment = read_run_state(checkpoint / "state.json").moment;
      return moment ? to_string(*moment) : "";
    } catch (const std::exception&) {
      return "";
    }
  });
  return found.empty() ? std::nullopt : std::optional(parse_moment(found));
}

RunState Checkpoints::load(const fs::path& checkpoint, Stack& model, Optimizer& optimizer) {
  check_intact(folder_, checkpoint, ranks_);
  on_rank_0(ranks_, [&] { report_layout(checkpoint); });
  RunState state;
  std::optional<Origin> origin;
  together(ranks_, [&] {
    const fs::path file = checkpoint / "state.json";
    state = read_run_state(file);
    origin = read_origin(file);
  });
  restore_tensors(checkpoint, model, optimizer, section_, world_);
  if (section_.finetune) state = RunState{};
  if (!section_.load_optim) state.optimizer_steps = 0;
  if (!section_.load_scheduler) state.scheduler_steps = state.schedule_length = 0;
  optimizer.set_steps(state.optimizer_steps);
  parent_ = {name_in(folder_.dir(), checkpoint), state.step, origin ? origin->serial : 0};
  on_rank_0(ranks_, [&] {
    const auto later = folder_.later_than(state.step);
    if (later.empty()) return;
    log_warning(later.size(), " checkpoint", later.size() == 1 ? "" : "s", " up to ", later.back().string(),
                later.size() == 1 ? " is" : " are",
                " of later steps than the one resumed from; the first that this run saves moves ",
                later.size() == 1 ? "it" : "them", " to ", (folder_.dir() / "abandoned").string());
  });
  return state;
}

std::size_t Checkpoints::to_be_abandoned() const {
  return parent_.name.empty() ? 0 : folder_.later_than(parent_.steps).size();
}

}  // namespace nemocube
