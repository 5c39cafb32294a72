#pragma once
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/test_models.h"
#include "parallel/comm/process_groups.h"
#include "parallel/parallel_model/parallel_model.h"
#include "tests/grids/grid_cases.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_dir.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/optimizer_files.h"
#include "train/step/train_step.h"

/// Small runs on process grids, for the tests of their checkpoints.
namespace nemocube::testing {

inline Communicator* world() { return &test_world().communicator(); }
inline bool first() { return test_world().rank() == 0; }

inline ModelConfig config_of(DType dtype) {
  ModelConfig config = grid_model();
  config.dtype = dtype;
  return config;
}

inline GridCase data_parallel(ZeroLevel level, std::int64_t replicas = 1) {
  return {.grid = {.dp_shard = test_world().size() / replicas, .dp_replicate = replicas}, .level = level};
}

/// The same weights for every seed but for adapters, where the config has them.
inline void draw(Stack& model, std::uint64_t seed) {
  if (model.choices().lora.modules.empty()) return initialise(model, seed);
  initialise(model, 3);
  for (const Parameter& p : model.parameters().all())
    if (p.name.find(".lora_") != p.name.npos) initialise(p, model.config(), seed, Initialisation::hf);
}

struct Training {
  Training(const GridCase& grid, DType dtype, std::uint64_t seed, OptimizerKind kind = OptimizerKind::adamw,
           Device device = Device::cpu)
      : Training(grid, config_of(dtype), seed, kind, device) {}
  /// In the dtype of the config.
  Training(const GridCase& grid, const ModelSetup& config, std::uint64_t seed,
           OptimizerKind kind = OptimizerKind::adamw, Device device = Device::cpu)
      : plan(plan_of(grid, config)),
        layout{grid.grid, grid.level, describe_stages(plan.pipeline)},
        place(place_of(plan.grid, test_world().rank())),
        groups(test_world(), make_grid(plan.grid), used_groups(plan, config)) {
    loaded.model =
        std::make_unique<Stack>(config, *config.config.dtype, Device::meta, part_of(plan, config, place));
    loaded.files = default_weight_files(config);
    parallel.emplace(*loaded.model, plan, groups, device);
    draw(*loaded.model, seed);
    parallel->data().spread_values();
    OptimizerOptions o;
    o.kind = kind;
    o.momentum = 0.5;
    optimizer.emplace(loaded.model->parameters(), o);
  }

  void train(int begin, int end) {
    for (int s = begin; s < end; ++s) {
      StepOptions options;
      options.lr = 0.01;
      options.weight_decay = 0.02;
      options.max_norm = 0.5;
      options.expert_bias_rate = loaded.model->choices().lora.modules.empty() ? 0.001 : 0;
      std::vector<TokenBatch> batches;
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        const auto seed = static_cast<std::uint64_t>(100 * s + 50 * microbatch + place.dp(plan.grid));
        const TestBatch batch = random_batch(loaded.model->config(), {5, 4 + s}, seed);
        batches.push_back({batch.ids, batch.labels, batch.sequences});
      }
      last = train_step(*parallel, *optimizer, batches, options);
      REQUIRE(last.outcome == StepOutcome::updated);
    }
  }

  RunState state(std::int64_t steps) const {
    RunState s;
    s.step = s.scheduler_steps = s.optimizer_steps = steps;
    s.samples = 2 * steps;
    s.loader = {0, 2, 100, 7};
    return s;
  }

  /// What this rank owns of the model, and all of its values where every rank keeps them.
  std::vector<Tensor> values() const {
    std::vector<Tensor> all;
    for (const Parameter& p : loaded.model->parameters().all()) {
      all.push_back(p.own);
      if (layout.zero != ZeroLevel::parameters) all.push_back(p.value);
    }
    for (const StateTensor& t : optimizer->state()) all.push_back(t.value);
    return all;
  }

  ParallelPlan plan;
  RankLayout layout;
  GridPlace place;
  ProcessGroups groups;
  LoadedModel loaded;
  std::optional<ParallelModel> parallel;
  std::optional<Optimizer> optimizer;
  StepResult last;
};

/// Whether this rank owns, bit for bit, a part of a whole model.
inline bool is_part_of(const Stack& part, Stack& whole) {
  bool same = true;
  for (const Parameter& p : part.parameters().all()) {
    const Tensor own = p.own.to(Device::cpu).reshape({-1}),
                 all = whole.parameters().get(p.name).value.reshape({-1});
    p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
      same = same &&
             std::memcmp(own.narrow(0, local, count).host_bytes(), all.narrow(0, global, count).host_bytes(),
                         static_cast<std::size_t>(count * size_of(own.dtype()))) == 0;
    });
  }
  return same;
}

inline void check_same(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i].clone(), want[i].clone());
}

inline std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> all;
  for (const Tensor& t : tensors) all.push_back(t.clone());
  return all;
}

inline CheckpointSection section_in(const std::filesystem::path& dir) {
  CheckpointSection s;
  s.checkpoint_dir = (dir / "runs").string();
  return s;
}

inline std::vector<GridCase> grids() {
  const std::int64_t ranks = test_world().size();
  std::vector<GridCase> all;
  for (const ZeroLevel level :
       {ZeroLevel::none, ZeroLevel::optimizer, ZeroLevel::gradients, ZeroLevel::parameters}) {
    all.push_back(data_parallel(level));
    if (ranks % 2 == 0 && level != ZeroLevel::none) all.push_back(data_parallel(level, 2));
  }
  using enum ScheduleKind;
  const GridCase cases[] = {
      {.grid = {.tp = 2}, .sequence_parallel = true, .level = ZeroLevel::none},
      {.grid = {.tp = 2, .expt_tp = 2}},
      {.grid = {.cp = 2}},
      {.grid = {.pp = 2}, .schedule = zbv, .chunks = 2},
      {.grid = {.dp_shard = 2, .ep = 2}, .level = ZeroLevel::none},
      {.grid = {.tp = 4}, .sequence_parallel = true},  // more ranks than key-value heads
      {.grid = {.tp = 4, .expt_tp = 2, .ep = 2}, .level = ZeroLevel::none},
      {.grid = {.dp_shard = 2, .pp = 2, .ep = 2}, .schedule = interleaved_1f1b, .chunks = 2},
      {.grid = {.tp = 2, .cp = 2, .ep = 2}, .sequence_parallel = true, .level = ZeroLevel::optimizer},
      {.grid = {.tp = 4, .dp_shard = 2, .expt_tp = 2, .ep = 2}, .level = ZeroLevel::gradients},
      {.grid = {.tp = 2, .cp = 2, .pp = 2, .ep = 2}, .schedule = zbv, .chunks = 2},
      {.grid = {.dp_shard = 2, .dp_replicate = 2, .pp = 2, .ep = 2}},
  };
  for (const GridCase& c : cases)
    if (c.grid.ranks() == ranks) all.push_back(c);
  return all;
}

/// The messages of all ranks, where `work` fails.
inline std::vector<std::string> messages_of(const auto& work) {
  return gather_texts(world(), message_of(work));
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

inline void barrier() { world()->host_barrier(); }

/// Every tensor of a checkpoint's optimizer as one rank would hold it.
inline std::map<std::string, Tensor> optimizer_of(const std::filesystem::path& checkpoint) {
  const StoredOptimizer stored(checkpoint / "optim");
  std::map<std::string, Tensor> all;
  std::vector<StateTensor> wanted;
  for (const auto& [name, entry] : stored.tensors())
    wanted.push_back(
        {name, Tensor::empty(entry.shape, *dtype_of_stored(entry.dtype), Device::cpu), Shard(entry.shape)});
  stored.read(wanted);
  for (const StateTensor& t : wanted) all.emplace(t.name, t.value);
  return all;
}

/// What a checkpoint holds whatever the layout: files of the model, and whole tensors of the optimizer.
struct WholeCheckpoint {
  explicit WholeCheckpoint(const std::filesystem::path& at)
      : model(files_below(at / "model")), optimizer(optimizer_of(at)) {}

  std::map<std::string, std::string> model;
  std::map<std::string, Tensor> optimizer;
};

inline void check_same_checkpoint(const std::filesystem::path& got, const WholeCheckpoint& want) {
  CHECK(files_below(got / "model") == want.model);
  const auto state = optimizer_of(got);
  REQUIRE(state.size() == want.optimizer.size());
  for (const auto& [name, value] : want.optimizer) {
    CAPTURE(name);
    REQUIRE(state.contains(name));
    CHECK_BITS(state.at(name), value);
  }
}

}  // namespace nemocube::testing
