#include "train/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"
#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

CheckpointSection section_in(const TestDir& dir) {
  CheckpointSection s;
  s.checkpoint_dir = (dir / "runs").string();
  return s;
}

struct Training {
  explicit Training(DType dtype, std::uint64_t seed, OptimizerKind kind = OptimizerKind::adamw,
                    const char* pattern = "ME*-") {
    NemotronHConfig config = tiny_config(pattern);
    config.dtype = dtype;
    loaded.model = std::make_unique<NemotronH>(config, dtype);
    randomise(*loaded.model, seed);
    loaded.files = default_weight_files(config);
    OptimizerOptions o;
    o.kind = kind;
    o.momentum = 0.5;
    optimizer = std::make_unique<Optimizer>(loaded.model->parameters(), o);
    // Masters and moments that are not what a fresh start has.
    for (const StateTensor& t : optimizer->state()) fill_normal(t.value, RandomStream(seed, t.name), 0, 1);
    optimizer->set_steps(17);
  }
  LoadedModel loaded;
  std::unique_ptr<Optimizer> optimizer;
};

RunState state_after(std::int64_t steps) {
  RunState s;
  s.step = steps;
  s.scheduler_steps = steps - 1;
  s.optimizer_steps = steps - 2;
  s.samples = 4 * steps;
  s.skipped_steps = 1;
  s.nonfinite_in_a_row = 2;
  s.lowest_validation_loss = 0.1 + 0.2;  // needs all digits
  s.loader = {3, 40, 100, 7};
  return s;
}

}  // namespace

TEST_CASE("checkpoint: what is loaded has the bits of what was saved") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
      const TestDir dir;
      const Checkpoints checkpoints(section_in(dir), "seed: 1\n");
      const Training saved(dtype, 1, kind);
      const RunState want = state_after(9);
      const fs::path at = checkpoints.save(saved.loaded, *saved.optimizer, want, false);
      CHECK(at.filename() == "epoch_3_step_8");
      CHECK(names_in(at) == std::vector<std::string>{"config.yaml", "model", "optim", "state.json"});
      CHECK(slurp(at / "config.yaml") == "seed: 1\n");
      const Training other(dtype, 2, kind);
      const RunState got = checkpoints.load(at, *other.loaded.model, *other.optimizer);
      CHECK(got.step == want.step);
      CHECK(got.scheduler_steps == want.scheduler_steps);
      CHECK(got.optimizer_steps == want.optimizer_steps);
      CHECK(got.samples == want.samples);
      CHECK(got.skipped_steps == want.skipped_steps);
      CHECK(got.nonfinite_in_a_row == want.nonfinite_in_a_row);
      CHECK(got.lowest_validation_loss == want.lowest_validation_loss);
      CHECK(got.loader == want.loader);
      CHECK(other.optimizer->steps() == want.optimizer_steps);
      const auto &a = saved.loaded.model->parameters().all(), &b = other.loaded.model->parameters().all();
      for (std::size_t i = 0; i < a.size(); ++i) CHECK_BITS(b[i].value, a[i].value);
      const auto x = saved.optimizer->state(), y = other.optimizer->state();
      REQUIRE(x.size() == y.size());
      for (std::size_t i = 0; i < x.size(); ++i) CHECK_BITS(y[i].value, x[i].value);
      // The model inside is a model directory of its own.
      const LoadedModel alone = load_model(at / "model", std::nullopt);
      CHECK(alone.model->dtype() == dtype);
      for (std::size_t i = 0; i < a.size(); ++i)
        CHECK_BITS(alone.model->parameters().all()[i].value, a[i].value);
    }
}

TEST_CASE("checkpoint: which one is found") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  const auto find = [&] { return Checkpoints(section, "").find(); };
  CHECK_FALSE(find().has_value());
  const Training t(DType::f32, 3, OptimizerKind::adamw, "-");
  const Checkpoints checkpoints(section, "");
  for (const std::int64_t step : {2, 10, 9})
    checkpoints.save(t.loaded, *t.optimizer, state_after(step), step == 2);
  const fs::path runs = dir / "runs";
  CHECK(fs::read_symlink(runs / "LATEST") == "epoch_3_step_8");
  CHECK(fs::read_symlink(runs / "LOWEST_VAL") == "epoch_3_step_1");
  // By number, not by name or time: 9 of step 10 comes after 8.
  CHECK(find()->filename() == "epoch_3_step_9");
  // A half-written one has no final name; other folders do not count.
  fs::create_directories(runs / "epoch_3_step_99.tmp");
  fs::create_directories(runs / "epoch_x_step_");
  CHECK(find()->filename() == "epoch_3_step_9");
  for (const auto& [name, want] : std::vector<std::pair<std::string, std::string>>{
           {"LATEST", "epoch_3_step_8"},
           {"LOWEST_VAL", "epoch_3_step_1"},
           {"epoch_3_step_9", "epoch_3_step_9"},
           {(runs / "epoch_3_step_1").string(), "epoch_3_step_1"}}) {
    section.restore_from = name;
    CHECK(find()->filename() == want);
  }
  section.restore_from = "epoch_0_step_77";
  CHECK_THROWS_WITH_AS(find(), doctest::Contains("epoch_0_step_77"), Error);
}

TEST_CASE("checkpoint: old ones go, but not the newest nor the best") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  section.max_recent_checkpoints = 2;
  const Checkpoints checkpoints(section, "");
  const Training t(DType::f32, 4, OptimizerKind::adamw, "-");
  for (std::int64_t step = 1; step <= 5; ++step)
    checkpoints.save(t.loaded, *t.optimizer, state_after(step), step == 2);
  CHECK(names_in(dir / "runs") == std::vector<std::string>{"LATEST", "LOWEST_VAL", "epoch_3_step_1",
                                                           "epoch_3_step_3", "epoch_3_step_4"});
  // Writing one again replaces it whole.
  spit(dir / "runs" / "epoch_3_step_4" / "stray", "x");
  checkpoints.save(t.loaded, *t.optimizer, state_after(5), false);
  CHECK_FALSE(fs::exists(dir / "runs" / "epoch_3_step_4" / "stray"));
}

TEST_CASE("checkpoint: errors name the file and what does not fit") {
  const TestDir dir;
  const Checkpoints checkpoints(section_in(dir), "");
  const Training t(DType::f32, 5, OptimizerKind::adamw, "-");
  const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(3), false);
  const auto refuses = [&](const Training& into, const char* text) {
    CHECK_THROWS_WITH_AS(checkpoints.load(at, *into.loaded.model, *into.optimizer), doctest::Contains(text),
                         Error);
  };
  refuses(Training(DType::f32, 5, OptimizerKind::sgd, "-"), "another optimizer");
  refuses(Training(DType::bf16, 5, OptimizerKind::adamw, "-"), "master.");
  refuses(Training(DType::f32, 5, OptimizerKind::adamw, "--"), "backbone.layers.1");
  const std::string state = slurp(at / "state.json");
  spit(at / "state.json", "{}");
  refuses(t, "state.json");
  spit(at / "state.json", state);
  fs::remove(at / "optim" / "optimizer.safetensors");
  refuses(t, "optimizer.safetensors");
}

TEST_CASE("checkpoint: a folder that cannot be written is an error that names it") {
  const TestDir dir;
  spit(dir / "runs", "a file");
  const Training t(DType::f32, 6, OptimizerKind::adamw, "-");
  CHECK_THROWS_WITH_AS(Checkpoints(section_in(dir), "").save(t.loaded, *t.optimizer, state_after(1), false),
                       doctest::Contains("epoch_3_step_0"), Error);
}
