#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/shared_directory.h"
#include "train/checkpoint/test_training.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

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

// Each grid has both dtypes and both devices, each device with one dtype: the next grid has the other pairs.
TEST_CASE("checkpoints of ranks: training goes on with the same bits, on every grid, level and device" *
          on_ranks({2, 8})) {
  bool swapped = false;
  for (const GridCase& grid : grids()) {
    train_save_resume(grid, swapped ? DType::bf16 : DType::f32, Device::cpu);
    train_save_resume(grid, swapped ? DType::f32 : DType::bf16, Device::guard);
    swapped = !swapped;
  }
}

TEST_CASE(
    "checkpoints of ranks: an asynchronous save has the bytes of the moment of its call, on every grid" *
    on_ranks({2, 8})) {
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

// Every pair of layouts comes once, in one of the two dtypes; each layout saves and loads both.
TEST_CASE("checkpoints of ranks: any layout takes over the checkpoint of any other, with every bit" *
          on_ranks({2, 8})) {
  const std::vector<GridCase> layouts = grids();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      const GridCase& from = layouts[i];
      CAPTURE(dtype);
      CAPTURE(name_of(from));
      const SharedDir dir;
      Training run(from, dtype, 3);
      CheckpointSection section = section_in(dir.path());
      run.train(0, 1);
      const fs::path at =
          Checkpoints(section, "", &test_world(), run.layout).save(run.loaded, *run.optimizer, run.state(1));
      const auto saved = first() ? std::optional<WholeCheckpoint>(at) : std::nullopt;
      for (std::size_t j = 0; j < layouts.size(); ++j) {
        if ((i + j) % 2 != (dtype == DType::f32 ? 0 : 1)) continue;
        const GridCase& to = layouts[j];
        CAPTURE(name_of(to));
        Training other(to, dtype, 4);
        CHECK(Checkpoints(section, "", &test_world(), other.layout)
                  .load(at, *other.loaded.model, *other.optimizer)
                  .step == 1);
        other.parallel->data().spread_values();
        CheckpointSection elsewhere = section;
        elsewhere.checkpoint_dir = (dir / cat("other", j)).string();
        const fs::path again = Checkpoints(elsewhere, "", &test_world(), other.layout)
                                   .save(other.loaded, *other.optimizer, other.state(1));
        if (saved) check_same_checkpoint(again, *saved);
        barrier();
      }
      // One rank alone.
      if (!saved) continue;
      const ModelConfig config = config_of(dtype);
      LoadedModel alone{.groups = nullptr,
                        .model = std::make_unique<Stack>(config, dtype, Device::cpu),
                        .parallel = nullptr,
                        .files = run.loaded.files};
      Optimizer optimizer(alone.model->parameters(), {});
      Checkpoints(section, "").load(at, *alone.model, optimizer);
      CheckpointSection elsewhere = section;
      elsewhere.checkpoint_dir = (dir / "alone").string();
      check_same_checkpoint(Checkpoints(elsewhere, "").save(alone, optimizer, run.state(1)), *saved);
    }
}

TEST_CASE("checkpoints of ranks: the checkpoint of one rank, and of a program without an index" *
          on_ranks({3, 8})) {
  const SharedDir dir;
  const CheckpointSection section = section_in(dir.path());
  const ModelConfig config = config_of(DType::bf16);
  const fs::path at = dir / "runs" / "epoch_0_step_0";
  if (first()) {
    LoadedModel alone{.groups = nullptr,
                      .model = std::make_unique<Stack>(config, DType::bf16, Device::cpu),
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
  const auto saved = first() ? std::optional<WholeCheckpoint>(at) : std::nullopt;
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
      if (saved) check_same_checkpoint(again, *saved);
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
