#include "train/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

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
  s.loader = {3, 40, 100, 7};
  return s;
}

}  // namespace

TEST_CASE("checkpoint: what is loaded has the bits of what was saved") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
      const TestDir dir;
      Checkpoints checkpoints(section_in(dir), "seed: 1\n");
      const Training saved(dtype, 1, kind);
      const RunState want = state_after(9);
      const fs::path at = checkpoints.save(saved.loaded, *saved.optimizer, want);
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
  Checkpoints checkpoints(section, "");
  for (const std::int64_t step : {2, 10, 9}) {
    const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(step));
    checkpoints.note_losses(at, {{"default", step == 2 ? 1.0 : 2.0}});
  }
  const fs::path runs = dir / "runs";
  CHECK(fs::read_symlink(runs / "LATEST") == "epoch_3_step_8");
  CHECK(fs::read_symlink(runs / "LOWEST_VAL") == "epoch_3_step_1");
  // What the last run wrote last, be its step higher or lower than that of others.
  CHECK(find()->filename() == "epoch_3_step_8");
  // Without it the highest step.
  const std::string state = slurp(runs / "epoch_3_step_8" / "state.json");
  fs::remove(runs / "epoch_3_step_8" / "state.json");
  CHECK(find()->filename() == "epoch_3_step_9");
  fs::remove(runs / "LATEST");
  CHECK(find()->filename() == "epoch_3_step_9");
  fs::create_directory_symlink("epoch_3_step_77", runs / "LATEST");
  CHECK(find()->filename() == "epoch_3_step_9");
  fs::create_directories(runs / "epoch_3_step_100");
  CHECK(find()->filename() == "epoch_3_step_9");
  // A half-written one has no final name; other folders do not count.
  fs::create_directories(runs / "epoch_3_step_99.tmp");
  fs::create_directories(runs / "epoch_x_step_");
  CHECK(find()->filename() == "epoch_3_step_9");
  spit(runs / "epoch_3_step_8" / "state.json", state);
  fs::remove(runs / "LATEST");
  fs::create_directory_symlink("epoch_3_step_8", runs / "LATEST");
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

TEST_CASE("checkpoint: where none is whole, the likeliest is found and refused, not passed over") {
  const TestDir dir;
  Checkpoints checkpoints(section_in(dir), "");
  const Training t(DType::f32, 3, OptimizerKind::adamw, "-");
  const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(3));
  fs::remove(at / "state.json");
  REQUIRE(checkpoints.find() == at);
  CHECK_THROWS_WITH_AS(checkpoints.load(at, *t.loaded.model, *t.optimizer), doctest::Contains("state.json"),
                       Error);
}

TEST_CASE("checkpoint: LOWEST_VAL is the saved one with the lowest loss, the first of equals") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  Checkpoints checkpoints(section, "");
  const Training t(DType::f32, 4, OptimizerKind::adamw, "-");
  const fs::path link = dir / "runs" / "LOWEST_VAL";
  const auto lowest_after = [&](std::int64_t step, double loss, double other) {
    const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(step));
    checkpoints.note_losses(at, {{"default", loss}, {"other", other}});
    return fs::exists(link) ? fs::read_symlink(link).string() : "none";
  };
  CHECK(lowest_after(1, std::nan(""), 0.5) == "none");
  CHECK(lowest_after(2, 0.1 + 0.2, 0.7) == "epoch_3_step_1");
  CHECK(lowest_after(3, std::numeric_limits<double>::infinity(), 0.6) == "epoch_3_step_1");
  CHECK(lowest_after(4, 0.1 + 0.2, 0.8) == "epoch_3_step_1");
  CHECK(lowest_after(5, 0.3, 0.9) == "epoch_3_step_4");  // 0.1 + 0.2 is more than 0.3
  // Known to another process as well, by the set it asks for; what is damaged is no candidate.
  section.best_metric_key = "other";
  checkpoints = Checkpoints(section, "");
  CHECK(lowest_after(6, 9, 9) == "epoch_3_step_0");
  spit(dir / "runs" / "epoch_3_step_0" / "losses.json", "{");
  CHECK(lowest_after(7, 9, 9) == "epoch_3_step_2");
}

TEST_CASE("checkpoint: old ones go, but not the newest nor the best") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  section.max_recent_checkpoints = 2;
  Checkpoints checkpoints(section, "");
  const Training t(DType::f32, 4, OptimizerKind::adamw, "-");
  for (std::int64_t step = 1; step <= 5; ++step)
    checkpoints.note_losses(checkpoints.save(t.loaded, *t.optimizer, state_after(step)),
                            {{"default", step == 2 ? 1.0 : 2.0}});
  CHECK(names_in(dir / "runs") == std::vector<std::string>{"LATEST", "LOWEST_VAL", "epoch_3_step_1",
                                                           "epoch_3_step_3", "epoch_3_step_4"});
}

TEST_CASE("checkpoint: a run that goes back leaves the other branch aside when it first saves") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  section.max_recent_checkpoints = 3;
  const fs::path runs = dir / "runs";
  const Training t(DType::f32, 4, OptimizerKind::adamw, "-");
  const auto names = [](const fs::path& folder) { return names_in(folder); };
  using Names = std::vector<std::string>;
  {
    Checkpoints first(section, "");
    for (const std::int64_t step : {2, 4, 6})
      first.note_losses(first.save(t.loaded, *t.optimizer, state_after(step)),
                        {{"default", 10.0 - static_cast<double>(step)}});
    spit(runs / "epoch_3_step_5" / "stray", "x");
  }
  const Names old{"LATEST", "LOWEST_VAL", "epoch_3_step_1", "epoch_3_step_3", "epoch_3_step_5"};
  Checkpoints second(section, "");
  second.load(runs / "epoch_3_step_1", *t.loaded.model, *t.optimizer);
  CHECK(names(runs) == old);  // nothing is touched before there is something new
  second.save(t.loaded, *t.optimizer, state_after(6));
  CHECK(names(runs) == Names{"LATEST", "LOWEST_VAL", "abandoned", "epoch_3_step_1", "epoch_3_step_5"});
  CHECK(names(runs / "abandoned") == Names{"epoch_3_step_3", "epoch_3_step_5"});
  CHECK(fs::exists(runs / "abandoned" / "epoch_3_step_5" / "stray"));
  CHECK_FALSE(fs::exists(runs / "epoch_3_step_5" / "stray"));
  CHECK(fs::read_symlink(runs / "LATEST") == "epoch_3_step_5");
  CHECK(fs::read_symlink(runs / "LOWEST_VAL") == "epoch_3_step_1");
  CHECK(second.find()->filename() == "epoch_3_step_5");
  // Its own later ones stay, and the window counts them alone.
  for (const std::int64_t step : {7, 8}) second.save(t.loaded, *t.optimizer, state_after(step));
  CHECK(names(runs) == Names{"LATEST", "LOWEST_VAL", "abandoned", "epoch_3_step_1", "epoch_3_step_5",
                             "epoch_3_step_6", "epoch_3_step_7"});
  CHECK(names(runs / "abandoned") == Names{"epoch_3_step_3", "epoch_3_step_5"});
  // And there is a way back.
  section.restore_from = "abandoned/epoch_3_step_5";
  CHECK(Checkpoints(section, "").find() == fs::canonical(runs / "abandoned" / "epoch_3_step_5"));
}

TEST_CASE("checkpoint: errors name the file and what does not fit") {
  const TestDir dir;
  Checkpoints checkpoints(section_in(dir), "");
  const Training t(DType::f32, 5, OptimizerKind::adamw, "-");
  const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(3));
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
  CHECK_THROWS_WITH_AS(Checkpoints(section_in(dir), "").save(t.loaded, *t.optimizer, state_after(1)),
                       doctest::Contains("epoch_3_step_0"), Error);
}
