#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/json/json.h"
#include "model/test_models.h"
#include "parallel/comm/process_groups.h"
#include "parallel/parallel_model/parallel_model.h"
#include "tests/grids/grid_cases.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_dir.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/optimizer_files.h"
#include "train/checkpoint/shared_directory.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

Communicator* world() { return &test_world().communicator(); }
bool first() { return test_world().rank() == 0; }

NemotronHConfig config_of(DType dtype) {
  NemotronHConfig config = grid_model();
  config.dtype = dtype;
  return config;
}

GridCase data_parallel(ZeroLevel level, std::int64_t replicas = 1) {
  return {.grid = {.dp_shard = test_world().size() / replicas, .dp_replicate = replicas}, .level = level};
}

struct Training {
  Training(const GridCase& grid, DType dtype, std::uint64_t seed, OptimizerKind kind = OptimizerKind::adamw,
           Device device = Device::cpu)
      : plan(plan_of(grid, config_of(dtype))),
        layout{grid.grid, grid.level, describe_stages(plan.pipeline)},
        place(place_of(plan.grid, test_world().rank())),
        groups(test_world(), make_grid(plan.grid)) {
    const NemotronHConfig config = config_of(dtype);
    loaded.model = std::make_unique<NemotronH>(config, dtype, Device::meta, part_of(plan, config, place));
    loaded.files = default_weight_files(config);
    parallel.emplace(*loaded.model, plan, groups, device);
    initialise(*loaded.model, seed);
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
      options.expert_bias_rate = 0.001;
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
bool is_part_of(const NemotronH& part, NemotronH& whole) {
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

void check_same(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i].clone(), want[i].clone());
}

std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> all;
  for (const Tensor& t : tensors) all.push_back(t.clone());
  return all;
}

CheckpointSection section_in(const fs::path& dir) {
  CheckpointSection s;
  s.checkpoint_dir = (dir / "runs").string();
  return s;
}

std::vector<GridCase> grids() {
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
std::vector<std::string> messages_of(const auto& work) { return gather_texts(world(), message_of(work)); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

void barrier() { world()->host_barrier(); }

/// Turns a checkpoint into one of an older program, whose files cannot be checked for damage.
void without_checksums(const fs::path& checkpoint) {
  Json state = read_json_file(checkpoint / "state.json");
  state.erase("origin");
  spit(checkpoint / "state.json", dump_json(state));
  fs::remove(checkpoint / checksums_file);
}

std::string part_name(int rank) {
  const std::string number = std::to_string(test_world().size());
  return test_world().size() == 1 ? "optimizer.safetensors"
                                  : cat("optimizer-0000", rank, "-of-", std::string(5 - number.size(), '0'),
                                        number, ".safetensors");
}

}  // namespace

namespace {

void train_save_resume(const GridCase& grid, DType dtype, Device device) {
  CAPTURE(name_of(grid));
  CAPTURE(dtype);
  CAPTURE(device);
  const SharedDir dir;
  Training run(grid, dtype, 3, OptimizerKind::adamw, device);
  Checkpoints checkpoints(section_in(dir.path()), "seed: 1\n", &test_world(), run.layout);
  run.train(0, 1);
  const fs::path at = checkpoints.save(run.loaded, *run.optimizer, run.state(1));
  CHECK(at == dir / "runs" / "epoch_0_step_0");
  const std::vector<Tensor> saved = copies(run.values());

  // The model is what one rank would have written, and every file has its sum.
  const LoadedModel whole = load_model(at / "model", std::nullopt, Device::cpu);
  CHECK(whole.model->dtype() == dtype);
  CHECK(is_part_of(*run.loaded.model, *whole.model));
  if (first()) {
    const TestDir alone;
    SaveOptions options;
    options.dtype = dtype;
    save_hf_weights(alone / "model", named_tensors(*whole.model), run.loaded.files, options);
    CHECK(files_below(at / "model") == files_below(alone / "model"));
    const auto sums = read_checksums(at);
    REQUIRE(sums);
    CHECK(sums->size() + 1 == files_below(at).size());
    CHECK_NOTHROW(check_sums(at, *sums));
  }
  run.train(1, 2);

  Training again(grid, dtype, 4, OptimizerKind::adamw, device);
  Checkpoints later(section_in(dir.path()), "", &test_world(), again.layout);
  REQUIRE(later.find() == at);
  const RunState state = later.load(at, *again.loaded.model, *again.optimizer);
  again.parallel->data().spread_values();
  CHECK(state.step == 1);
  CHECK(again.optimizer->steps() == 1);
  check_same(again.values(), saved);
  again.train(1, 2);
  CHECK(again.last.loss == run.last.loss);
  CHECK(again.last.grad_norm == run.last.grad_norm);
  check_same(again.values(), run.values());
}

}  // namespace

TEST_CASE("checkpoints of ranks: training goes on with the same bits, on every grid, level and device") {
  for (const GridCase& grid : grids())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Device device : {Device::cpu, Device::guard}) train_save_resume(grid, dtype, device);
}

TEST_CASE(
    "checkpoints of ranks: an asynchronous save has the bytes of the moment of its call, on every grid") {
  for (const GridCase& grid : grids()) {
    CAPTURE(name_of(grid));
    const SharedDir dir;
    Training run(grid, DType::bf16, 3);  // with masters
    CheckpointSection section = section_in(dir.path());
    Checkpoints sync(section, "", &test_world(), run.layout);
    section.checkpoint_dir = (dir / "async").string();
    section.is_async = true;
    Checkpoints async(section, "", &test_world(), run.layout);
    for (const std::int64_t step : {1, 2}) {
      sync.save(run.loaded, *run.optimizer, run.state(step));
      const fs::path saved = async.save(run.loaded, *run.optimizer, run.state(step));
      run.train(step - 1, step);  // while the threads of all ranks write
      async.note_losses(saved, {{"default", 3.0}});
    }
    async.finish();
    CHECK(async.take_published().size() == 2);
    sync.note_losses(dir / "runs" / "epoch_0_step_0", {{"default", 3.0}});
    sync.note_losses(dir / "runs" / "epoch_0_step_1", {{"default", 3.0}});
    if (first()) CHECK(files_below(dir / "async") == files_below(dir / "runs"));
  }
}

TEST_CASE("checkpoints of ranks: all ranks get the error of the one that cannot write an asynchronous save") {
  const SharedDir dir;
  Training run(data_parallel(ZeroLevel::optimizer), DType::f32, 3);
  CheckpointSection section = section_in(dir.path());
  section.is_async = true;
  Checkpoints checkpoints(section, "", &test_world(), run.layout);
  checkpoints.save(run.loaded, *run.optimizer, run.state(1));
  checkpoints.finish();
  barrier();
  const auto before = first() ? files_below(dir / "runs") : std::map<std::string, std::string>();
  if (first()) spit(dir / "runs" / "abandoned", "");  // where the checkpoint of the same name cannot go
  barrier();
  checkpoints.save(run.loaded, *run.optimizer, run.state(1));
  run.train(0, 1);
  for (const std::string& text : messages_of([&] { checkpoints.finish(); }))
    CHECK_MESSAGE(contains(text, "epoch_0_step_0: cannot be written"), text);
  barrier();
  if (!first()) return;
  fs::remove(dir / "runs" / "abandoned");
  CHECK(files_below(dir / "runs") == before);
}

TEST_CASE("checkpoints of ranks: the optimizer's files hold every element once") {
  for (const GridCase& grid : grids()) {
    if (grid.grid.tp > 1) continue;  // ranks may own different parts of which some elements are the same
    CAPTURE(name_of(grid));
    const SharedDir dir;
    Training run(grid, DType::bf16, 3);
    Checkpoints checkpoints(section_in(dir.path()), "", &test_world(), run.layout);
    run.train(0, 1);
    const fs::path at = checkpoints.save(run.loaded, *run.optimizer, run.state(1));
    std::map<std::string, std::int64_t> elements;
    std::size_t files = 0;
    for (const auto& entry : fs::directory_iterator(at / "optim")) {
      if (entry.path().filename() == "index.json") continue;
      const SafetensorsFile file(entry.path());
      for (const StoredTensor& t : file.tensors()) elements[t.name] += file.tensor(t).numel();
      CHECK(file.metadata().contains("shards") == (test_world().size() > 1));
      ++files;
    }
    for (const StateTensor& t : run.optimizer->state())
      CHECK(elements[t.name] == t.shard.global_shape().numel());
    if (grid.level == ZeroLevel::none && grid.grid.ep == 1) CHECK(files == 1);
  }
}

namespace {

/// Every tensor of a checkpoint's optimizer as one rank would hold it.
std::map<std::string, Tensor> optimizer_of(const fs::path& checkpoint) {
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

void check_same_checkpoint(const fs::path& got, const fs::path& want) {
  CHECK(files_below(got / "model") == files_below(want / "model"));
  const auto state = optimizer_of(got), wanted = optimizer_of(want);
  REQUIRE(state.size() == wanted.size());
  for (const auto& [name, value] : wanted) {
    CAPTURE(name);
    REQUIRE(state.contains(name));
    CHECK_BITS(state.at(name), value);
  }
}

}  // namespace

TEST_CASE("checkpoints of ranks: any layout takes over the checkpoint of any other, with every bit") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const GridCase& from : grids()) {
      CAPTURE(dtype);
      CAPTURE(name_of(from));
      const SharedDir dir;
      Training run(from, dtype, 3);
      CheckpointSection section = section_in(dir.path());
      run.train(0, 1);
      const fs::path at =
          Checkpoints(section, "", &test_world(), run.layout).save(run.loaded, *run.optimizer, run.state(1));
      int number = 0;
      for (const GridCase& to : grids()) {
        CAPTURE(name_of(to));
        Training other(to, dtype, 4);
        CHECK(Checkpoints(section, "", &test_world(), other.layout)
                  .load(at, *other.loaded.model, *other.optimizer)
                  .step == 1);
        other.parallel->data().spread_values();
        CheckpointSection elsewhere = section;
        elsewhere.checkpoint_dir = (dir / cat("other", ++number)).string();
        const fs::path again = Checkpoints(elsewhere, "", &test_world(), other.layout)
                                   .save(other.loaded, *other.optimizer, other.state(1));
        if (first()) check_same_checkpoint(again, at);
        barrier();
      }
      // One rank alone.
      if (!first()) continue;
      const NemotronHConfig config = config_of(dtype);
      LoadedModel alone{.groups = nullptr,
                        .model = std::make_unique<NemotronH>(config, dtype, Device::cpu),
                        .parallel = nullptr,
                        .files = run.loaded.files};
      Optimizer optimizer(alone.model->parameters(), {});
      Checkpoints(section, "").load(at, *alone.model, optimizer);
      CheckpointSection elsewhere = section;
      elsewhere.checkpoint_dir = (dir / "alone").string();
      check_same_checkpoint(Checkpoints(elsewhere, "").save(alone, optimizer, run.state(1)), at);
    }
}

TEST_CASE("checkpoints of ranks: the checkpoint of one rank, and of a program without an index") {
  const SharedDir dir;
  const CheckpointSection section = section_in(dir.path());
  const NemotronHConfig config = config_of(DType::bf16);
  const fs::path at = dir / "runs" / "epoch_0_step_0";
  if (first()) {
    LoadedModel alone{.groups = nullptr,
                      .model = std::make_unique<NemotronH>(config, DType::bf16, Device::cpu),
                      .parallel = nullptr,
                      .files = default_weight_files(config)};
    initialise(*alone.model, 8);
    Optimizer optimizer(alone.model->parameters(), {});
    std::uint64_t seed = 0;
    for (const StateTensor& t : optimizer.state())
      t.value.copy_from(random_tensor(t.value.shape(), t.value.dtype(), ++seed));
    RunState state;
    state.step = state.samples = 1;
    state.loader = {0, 2, 100, 7};
    Checkpoints(section, "").save(alone, optimizer, state);
  }
  barrier();
  for (const bool indexed : {true, false}) {
    if (!indexed && first()) {
      fs::remove(at / "optim" / "index.json");
      without_checksums(at);
    }
    barrier();
    for (const GridCase& to : grids()) {
      CAPTURE(name_of(to));
      Training other(to, DType::bf16, 4);
      Checkpoints(section, "", &test_world(), other.layout).load(at, *other.loaded.model, *other.optimizer);
      other.parallel->data().spread_values();
      CheckpointSection elsewhere = section;
      elsewhere.checkpoint_dir = (dir / cat("other", indexed, to.grid.ranks(), name_of(to))).string();
      const fs::path again = Checkpoints(elsewhere, "", &test_world(), other.layout)
                                 .save(other.loaded, *other.optimizer, other.state(1));
      if (first()) check_same_checkpoint(again, at);
      barrier();
    }
  }
}

TEST_CASE("checkpoints of ranks: another dtype takes over weights and masters at their precision") {
  for (const GridCase& grid : {data_parallel(ZeroLevel::none), data_parallel(ZeroLevel::parameters)}) {
    const SharedDir dir;
    const CheckpointSection section = section_in(dir.path());
    Training run(grid, DType::bf16, 3);
    run.train(0, 1);
    const fs::path at =
        Checkpoints(section, "", &test_world(), run.layout).save(run.loaded, *run.optimizer, run.state(1));
    // The weights of f32 are the masters of bf16, and back.
    Training single(grid, DType::f32, 4);
    Checkpoints(section, "", &test_world(), single.layout).load(at, *single.loaded.model, *single.optimizer);
    std::size_t compared = 0;
    for (const StateTensor& t : run.optimizer->state())
      if (t.name.starts_with("master.") && grid.level == ZeroLevel::none) {
        CHECK_BITS(single.loaded.model->parameters().get(t.name.substr(7)).own.clone(), t.value.clone());
        ++compared;
      }
    CHECK((compared > 20 || grid.level != ZeroLevel::none));
    CheckpointSection elsewhere = section;
    elsewhere.checkpoint_dir = (dir / "single").string();
    single.parallel->data().spread_values();
    const fs::path in_f32 = Checkpoints(elsewhere, "", &test_world(), single.layout)
                                .save(single.loaded, *single.optimizer, single.state(1));
    Training back(grid, DType::bf16, 5);
    Checkpoints(elsewhere, "", &test_world(), back.layout).load(in_f32, *back.loaded.model, *back.optimizer);
    back.parallel->data().spread_values();
    check_same(back.values(), run.values());
  }
}

TEST_CASE("checkpoints of ranks: a part of the optimizer that is missing, damaged or another's is named") {
  const int ranks = test_world().size();
  for (const ZeroLevel level : {ZeroLevel::none, ZeroLevel::parameters}) {
    CAPTURE(static_cast<int>(level));
    const SharedDir dir;
    Training run(data_parallel(level), DType::f32, 3);
    Checkpoints checkpoints(section_in(dir.path()), "", &test_world(), run.layout);
    run.train(0, 1);
    const fs::path at = checkpoints.save(run.loaded, *run.optimizer, run.state(1));
    const int last = level == ZeroLevel::none ? 0 : std::min(ranks - 1, 1);
    const fs::path part = at / "optim" / part_name(last);
    REQUIRE(fs::exists(part));
    const std::string good = slurp(part);
    barrier();  // before rank 0 changes the file
    const auto check_refused = [&](const std::string& what) {
      barrier();
      for (const std::string& text :
           messages_of([&] { checkpoints.load(at, *run.loaded.model, *run.optimizer); }))
        CHECK_MESSAGE((contains(text, (at / "optim").string()) && contains(text, what)), text);
      barrier();
    };
    std::string bad = good;
    bad[bad.size() - 2] ^= 1;
    if (first()) spit(part, bad);
    check_refused(part.string() + ": damaged: its CRC-32C is ");
    if (first()) fs::remove(part);
    check_refused(part.string() + ": cannot open");
    // Where no checksums tell, the rank that reads the part does.
    if (first()) without_checksums(at);
    check_refused(part.string() + ": cannot open");
    if (ranks > 1) {
      // The file says of a tensor that its global shape is another one.
      if (first()) fs::remove(at / "optim" / "index.json");
      bad = good;
      const std::string shape = R"(\"shape\":[)";
      const std::size_t digit = bad.find(shape) + shape.size();
      REQUIRE(digit < bad.size());
      bad[digit] = bad[digit] == '9' ? '8' : '9';
      if (first()) spit(part, bad);
      check_refused("another shape");
    }
    if (first()) spit(part, good);
    barrier();
    CHECK(checkpoints.load(at, *run.loaded.model, *run.optimizer).step == 1);
    // Another optimizer.
    Training other(data_parallel(level), DType::f32, 3, OptimizerKind::sgd);
    for (const std::string& text :
         messages_of([&] { checkpoints.load(at, *other.loaded.model, *other.optimizer); }))
      CHECK_MESSAGE(contains(text, "another optimizer"), text);
  }
}

TEST_CASE("checkpoints of ranks: rank 0 finds, notes, recovers and prunes for all") {
  const SharedDir dir;
  CheckpointSection section = section_in(dir.path());
  section.max_recent_checkpoints = 2;
  Training run(data_parallel(ZeroLevel::none), DType::f32, 3);
  const RankLayout& layout = run.layout;
  Checkpoints checkpoints(section, "", &test_world(), layout);
  CHECK_FALSE(checkpoints.find());
  const fs::path runs = dir / "runs";
  for (const std::int64_t step : {1, 2, 3, 4}) {
    const fs::path at = checkpoints.save(run.loaded, *run.optimizer, run.state(step));
    checkpoints.note_losses(at, {{"default", step == 2 ? 1.0 : 2.0}});
  }
  CHECK(names_in(runs) == std::vector<std::string>{"LATEST", "LOWEST_VAL", "epoch_0_step_1", "epoch_0_step_2",
                                                   "epoch_0_step_3"});
  CHECK(checkpoints.find() == runs / "epoch_0_step_3");
  barrier();
  if (first()) fs::rename(runs / "epoch_0_step_3", runs / ".epoch_0_step_3.123.4.tmp");
  Checkpoints next(section, "", &test_world(), layout);
  next.recover(false);
  CHECK_FALSE(fs::exists(runs / "epoch_0_step_3"));
  barrier();
  next.recover();
  CHECK(next.find() == runs / "epoch_0_step_3");
  section.restore_from = "LOWEST_VAL";
  CHECK(Checkpoints(section, "", &test_world(), layout).find() == fs::canonical(runs / "epoch_0_step_1"));
  section.restore_from = "epoch_7_step_7";
  for (const std::string& text : messages_of([&] { Checkpoints(section, "", &test_world(), layout).find(); }))
    CHECK(contains(text, "no checkpoint 'epoch_7_step_7'"));
}

TEST_CASE("checkpoints of ranks: a directory that cannot be written is named by all ranks") {
  const SharedDir dir;
  if (first()) spit(dir / "runs", "a file");
  Training run(data_parallel(ZeroLevel::optimizer), DType::f32, 3);
  for (const std::string& text : messages_of([&] {
         Checkpoints(section_in(dir.path()), "", &test_world(), run.layout)
             .save(run.loaded, *run.optimizer, run.state(1));
       }))
    CHECK_MESSAGE(contains(text, "epoch_0_step_0"), text);
}

TEST_CASE(
    "checkpoints of ranks: a directory that a rank does not see is refused, and nothing is left in it") {
  const int ranks = test_world().size();
  const SharedDir dir;
  check_shared_directory(dir.path(), world());
  CHECK(names_in(dir.path()).empty());
  barrier();
  if (ranks == 1) return;
  const bool blind = test_world().rank() > 0;
  for (const std::string& text :
       messages_of([&] { check_shared_directory(blind ? dir / "elsewhere" : dir.path(), world()); })) {
    CHECK_MESSAGE(contains(text, ": rank 1 on host "), text);
    CHECK_MESSAGE(contains(text, "and 1 more do not") == (ranks == 3), text);
    CHECK_MESSAGE(contains(text, "rank 0 has just written"), text);
  }
  CHECK(names_in(dir.path()).empty());
}
