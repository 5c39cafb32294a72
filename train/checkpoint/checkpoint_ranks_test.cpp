#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/json/json.h"
#include "model/test_models.h"
#include "parallel/comm/process_groups.h"
#include "parallel/data_parallel/data_parallel.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_dir.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/shared_directory.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

Communicator* world() { return &test_world().communicator(); }
bool first() { return test_world().rank() == 0; }

NemotronHConfig config_of(DType dtype) {
  NemotronHConfig config = tiny_config("ME*-");
  config.dtype = dtype;
  return config;
}

RankLayout layout_of(ZeroLevel level, std::int64_t replicas = 1) {
  return {test_world().size(), test_world().size() / replicas, replicas, level};
}

struct Training {
  Training(const RankLayout& ranks, DType dtype, std::uint64_t seed,
           OptimizerKind kind = OptimizerKind::adamw)
      : layout(ranks),
        groups(test_world(), make_grid({.dp_shard = layout.dp_shard, .dp_replicate = layout.dp_replicate})) {
    const NemotronHConfig config = config_of(dtype);
    loaded.model = std::make_unique<NemotronH>(config, dtype, Device::meta);
    loaded.files = default_weight_files(config);
    ParallelPlan plan;
    plan.grid = {.dp_shard = layout.dp_shard, .dp_replicate = layout.dp_replicate};
    plan.data.level = layout.zero;
    parallel.emplace(*loaded.model, plan, groups, Device::cpu);
    initialise(*loaded.model, seed);
    parallel->data().spread_values();
    OptimizerOptions o;
    o.kind = kind;
    o.momentum = 0.5;
    optimizer.emplace(loaded.model->parameters(), o);
  }

  void train(int begin, int end) {
    for (int s = begin; s < end; ++s) {
      const TestBatch batch = random_batch(loaded.model->config(), {5, 4 + s},
                                           static_cast<std::uint64_t>(100 * s + test_world().rank()));
      StepOptions options;
      options.lr = 0.01;
      options.weight_decay = 0.02;
      options.max_norm = 0.5;
      options.expert_bias_rate = 0.001;
      options.parallel = &*parallel;
      const std::vector<TokenBatch> batches{{batch.ids, batch.labels, batch.sequences}};
      last = train_step(*loaded.model, *optimizer, batches, options);
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

  /// The same model on one rank, with the values of all.
  LoadedModel whole() {
    LoadedModel one;
    one.model = std::make_unique<NemotronH>(loaded.model->config(), loaded.model->dtype(), Device::cpu);
    one.files = loaded.files;
    parallel->data().hold(DataParallel::Held::everything);
    for (const Parameter& p : loaded.model->parameters().all())
      one.model->parameters().get(p.name).value.copy_from(p.value);
    parallel->data().let_go();
    return one;
  }

  RankLayout layout;
  ProcessGroups groups;
  LoadedModel loaded;
  std::optional<ParallelModel> parallel;
  std::optional<Optimizer> optimizer;
  StepResult last;
};

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

std::vector<RankLayout> layouts() {
  std::vector<RankLayout> all;
  for (const ZeroLevel level :
       {ZeroLevel::none, ZeroLevel::optimizer, ZeroLevel::gradients, ZeroLevel::parameters}) {
    all.push_back(layout_of(level));
    if (test_world().size() % 2 == 0 && level != ZeroLevel::none) all.push_back(layout_of(level, 2));
  }
  return all;
}

/// The messages of all ranks, where `work` fails.
std::vector<std::string> messages_of(const auto& work) { return gather_texts(world(), message_of(work)); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

void barrier() { world()->barrier(); }

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

TEST_CASE("checkpoints of ranks: training goes on with the same bits, on every level") {
  for (const RankLayout& layout : layouts())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(to_string(layout));
      CAPTURE(dtype);
      const SharedDir dir;
      Checkpoints checkpoints(section_in(dir.path()), "seed: 1\n", world(), layout);
      Training run(layout, dtype, 3);
      run.train(0, 2);
      const fs::path at = checkpoints.save(run.loaded, *run.optimizer, run.state(2));
      CHECK(at == dir / "runs" / "epoch_0_step_1");
      const std::vector<Tensor> saved = copies(run.values());
      const LoadedModel whole = run.whole();
      run.train(2, 4);

      // The model is what one rank would have written, and every file has its sum.
      if (first()) {
        const TestDir alone;
        SaveOptions options;
        options.dtype = dtype;
        save_hf_weights(alone / "model", named_tensors(*whole.model), whole.files, options);
        CHECK(files_below(at / "model") == files_below(alone / "model"));
        const auto sums = read_checksums(at);
        REQUIRE(sums);
        CHECK(sums->size() + 1 == files_below(at).size());
        CHECK_NOTHROW(check_sums(at, *sums));
      }
      Training again(layout, dtype, 4);
      Checkpoints later(section_in(dir.path()), "", world(), layout);
      REQUIRE(later.find() == at);
      const RunState state = later.load(at, *again.loaded.model, *again.optimizer);
      again.parallel->data().spread_values();
      CHECK(state.step == 2);
      CHECK(again.optimizer->steps() == 2);
      check_same(again.values(), saved);
      again.train(2, 4);
      CHECK(again.last.loss == run.last.loss);
      CHECK(again.last.grad_norm == run.last.grad_norm);
      check_same(again.values(), run.values());
    }
}

TEST_CASE("checkpoints of ranks: the optimizer's files hold every element once") {
  for (const RankLayout& layout : layouts()) {
    CAPTURE(to_string(layout));
    const SharedDir dir;
    Checkpoints checkpoints(section_in(dir.path()), "", world(), layout);
    Training run(layout, DType::bf16, 3);
    run.train(0, 1);
    const fs::path at = checkpoints.save(run.loaded, *run.optimizer, run.state(1));
    if (!first()) continue;
    std::map<std::string, std::int64_t> elements;
    std::size_t files = 0;
    for (const auto& entry : fs::directory_iterator(at / "optim")) {
      const SafetensorsFile file(entry.path());
      for (const StoredTensor& t : file.tensors()) elements[t.name] += file.tensor(t).numel();
      CHECK(file.metadata().contains("shards") == (layout.ranks > 1));
      ++files;
    }
    std::map<std::string, std::int64_t> want;
    for (const StateTensor& t : run.optimizer->state()) want[t.name] = t.shard.global_shape().numel();
    CHECK(elements == want);
    if (layout.zero == ZeroLevel::none)
      CHECK(files == 1);
    else if (layout.dp_shard == 2)
      CHECK(files == 2);
  }
}

TEST_CASE("checkpoints of ranks: another layout is refused, with one message on all ranks") {
  const int ranks = test_world().size();
  const SharedDir dir;
  const CheckpointSection section = section_in(dir.path());
  const RankLayout layout = layout_of(ZeroLevel::parameters);
  Training run(layout, DType::f32, 3);
  const fs::path at =
      Checkpoints(section, "", world(), layout).save(run.loaded, *run.optimizer, run.state(1));
  if (ranks > 1) {
    const RankLayout plain = layout_of(ZeroLevel::optimizer);
    Training other(plain, DType::f32, 3);
    for (const std::string& text : messages_of([&] {
           Checkpoints(section, "", world(), plain).load(at, *other.loaded.model, *other.optimizer);
         }))
      CHECK(text == cat((at / "state.json").string(), ": the checkpoint was written by ", ranks,
                        " ranks (dp_shard ", ranks, ", dp_replicate 1, ZeRO level 3), this run has ", ranks,
                        " ranks (dp_shard ", ranks,
                        ", dp_replicate 1, ZeRO level 1); want the same number of ranks and the same "
                        "distributed section of the recipe"));
  }
  // One rank writes no layout, and refuses that of several.
  if (first()) {
    CHECK(contains(slurp(at / "state.json"), "layout") == (ranks > 1));
    NemotronH model(config_of(DType::f32), DType::f32, Device::cpu);
    Optimizer optimizer(model.parameters(), {});
    const std::string text = message_of([&] { Checkpoints(section, "").load(at, model, optimizer); });
    if (ranks > 1)
      CHECK(contains(text, "this run has 1 rank;"));
    else
      CHECK(text == "no error");
  }
}

TEST_CASE("checkpoints of ranks: a part of the optimizer that is missing, damaged or another's is named") {
  const int ranks = test_world().size();
  for (const ZeroLevel level : {ZeroLevel::none, ZeroLevel::parameters}) {
    CAPTURE(static_cast<int>(level));
    const SharedDir dir;
    const RankLayout layout = layout_of(level);
    Checkpoints checkpoints(section_in(dir.path()), "", world(), layout);
    Training run(layout, DType::f32, 3);
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
        CHECK_MESSAGE((contains(text, part.string()) && contains(text, what)), text);
      barrier();
    };
    std::string bad = good;
    bad[bad.size() - 2] ^= 1;
    if (first()) spit(part, bad);
    check_refused("damaged: its CRC-32C is ");
    if (first()) fs::remove(part);
    check_refused("cannot open");
    // Where no checksums tell, the rank that reads the part does.
    if (first()) without_checksums(at);
    check_refused("cannot open");
    if (ranks > 1) {
      // The file says of a tensor that its global shape is another one.
      bad = good;
      const std::string shape = R"(\"shape\":[)";
      const std::size_t digit = bad.find(shape) + shape.size();
      REQUIRE(digit < bad.size());
      bad[digit] = bad[digit] == '9' ? '8' : '9';
      if (first()) spit(part, bad);
      check_refused("want the part {\"shape\":[");
    }
    if (first()) spit(part, good);
    barrier();
    CHECK(checkpoints.load(at, *run.loaded.model, *run.optimizer).step == 1);
    // Another optimizer.
    Training other(layout, DType::f32, 3, OptimizerKind::sgd);
    for (const std::string& text :
         messages_of([&] { checkpoints.load(at, *other.loaded.model, *other.optimizer); }))
      CHECK_MESSAGE(contains(text, "another optimizer"), text);
  }
}

TEST_CASE("checkpoints of ranks: rank 0 finds, notes, recovers and prunes for all") {
  const SharedDir dir;
  CheckpointSection section = section_in(dir.path());
  section.max_recent_checkpoints = 2;
  const RankLayout layout = layout_of(ZeroLevel::none);
  Checkpoints checkpoints(section, "", world(), layout);
  CHECK_FALSE(checkpoints.find());
  Training run(layout, DType::f32, 3);
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
  Checkpoints next(section, "", world(), layout);
  next.recover(false);
  CHECK_FALSE(fs::exists(runs / "epoch_0_step_3"));
  barrier();
  next.recover();
  CHECK(next.find() == runs / "epoch_0_step_3");
  section.restore_from = "LOWEST_VAL";
  CHECK(Checkpoints(section, "", world(), layout).find() == fs::canonical(runs / "epoch_0_step_1"));
  section.restore_from = "epoch_7_step_7";
  for (const std::string& text : messages_of([&] { Checkpoints(section, "", world(), layout).find(); }))
    CHECK(contains(text, "no checkpoint 'epoch_7_step_7'"));
}

TEST_CASE("checkpoints of ranks: a directory that cannot be written is named by all ranks") {
  const SharedDir dir;
  if (first()) spit(dir / "runs", "a file");
  const RankLayout layout = layout_of(ZeroLevel::optimizer);
  Training run(layout, DType::f32, 3);
  for (const std::string& text : messages_of([&] {
         Checkpoints(section_in(dir.path()), "", world(), layout)
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
