#include "train/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/json/json.h"
#include "data/safetensors/format.h"
#include "data/safetensors/writer.h"
#include "train/checkpoint/test_drawn_run.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

// Turns a checkpoint into one of an older program: without checksums.json, and without its serial number.
void make_old(const fs::path& checkpoint) {
  Json state = read_json_file(checkpoint / "state.json");
  state.erase("origin");
  spit(checkpoint / "state.json", dump_json(state));
  fs::remove(checkpoint / "checksums.json");
}

}  // namespace

TEST_CASE("checkpoint: what is loaded has the bits of what was saved, from and to every device") {
  struct Way {
    Device from, to;
  };
  for (const auto& [from, to] :
       {Way{Device::cpu, Device::cpu}, Way{Device::guard, Device::guard}, Way{Device::guard, Device::cpu}})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
        CAPTURE(from);
        CAPTURE(to);
        const TestDir dir;
        Checkpoints checkpoints(section_in(dir), "seed: 1\n");
        const DrawnRun saved(dtype, 1, kind, "ME*-", from);
        const RunState want = state_after(9);
        const fs::path at = checkpoints.save(saved.loaded, *saved.optimizer, want);
        CHECK(at.filename() == "epoch_1_step_8");
        CHECK(names_in(at) ==
              std::vector<std::string>{"checksums.json", "config.yaml", "model", "optim", "state.json"});
        CHECK(slurp(at / "config.yaml") == "seed: 1\n");
        const DrawnRun other(dtype, 2, kind, "ME*-", to);
        const RunState got = checkpoints.load(at, *other.loaded.model, *other.optimizer);
        CHECK(got.step == want.step);
        CHECK(got.scheduler_steps == want.scheduler_steps);
        CHECK(got.schedule_length == want.schedule_length);
        CHECK(got.optimizer_steps == want.optimizer_steps);
        CHECK(got.samples == want.samples);
        CHECK(got.skipped_steps == want.skipped_steps);
        CHECK(got.nonfinite_in_a_row == want.nonfinite_in_a_row);
        CHECK(got.loader == want.loader);
        CHECK(got.early_stopping == want.early_stopping);
        CHECK(other.optimizer->steps() == want.optimizer_steps);
        const auto &a = saved.loaded.model->parameters().all(), &b = other.loaded.model->parameters().all();
        for (std::size_t i = 0; i < a.size(); ++i) CHECK_BITS(b[i].value, a[i].value);
        const auto x = saved.optimizer->state(), y = other.optimizer->state();
        REQUIRE(x.size() == y.size());
        for (std::size_t i = 0; i < x.size(); ++i) CHECK_BITS(y[i].value, x[i].value);
        // model/ inside the checkpoint can be loaded alone, like any Hugging Face directory.
        const LoadedModel alone = load_model(at / "model", std::nullopt, Device::cpu);
        CHECK(alone.model->dtype() == dtype);
        for (std::size_t i = 0; i < a.size(); ++i)
          CHECK_BITS(alone.model->parameters().all()[i].value, a[i].value);
      }
}

TEST_CASE(
    "checkpoint: of adapters it is a directory for PEFT, with the tokenizer and without the base model") {
  for (const bool async : {false, true}) {
    const TestDir dir;
    CheckpointSection section = section_in(dir);
    section.is_async = async;
    Checkpoints checkpoints(section, "seed: 1\n");
    const ModelSetup config = frozen_base(
        with_adapters(tiny_config("ME*-"), [](const std::string& m) { return m.find("_proj") != m.npos; }));
    ModelSetup plain = config;
    for (auto& [module, adapter] : plain.choices.lora.modules) adapter.rank_stabilised = false;
    LoadedModel run;
    run.model = std::make_unique<Stack>(plain, DType::f32, Device::cpu);
    randomise(*run.model, 3);
    run.files = default_weight_files(plain);
    run.files.other_files["tokenizer.json"] = "{}";
    run.files.other_files["tokenizer_config.json"] = "{\"a\": 1}";
    run.files.other_files["generation_config.json"] = "{}";
    run.base = "models/base";
    run.adapter_settings = "{}\n";
    Optimizer optimizer(run.model->parameters(), {});
    std::vector<Tensor> saved;
    for (const Parameter& p : run.model->parameters().all()) saved.push_back(p.value.clone());
    const fs::path at = checkpoints.save(run, optimizer, state_after(9));
    if (async)  // training goes on at once
      for (const Parameter& p : run.model->parameters().all())
        if (p.wants_grad()) p.value.fill(7);
    checkpoints.finish();
    CHECK(names_in(at / "model") == Names{"adapter_config.json", "adapter_model.safetensors",
                                          "automodel_peft_config.json", "generation_config.json",
                                          "tokenizer.json", "tokenizer_config.json"});
    CHECK(slurp(at / "model/automodel_peft_config.json") == "{}\n");
    CHECK(slurp(at / "model/tokenizer_config.json") == "{\"a\": 1}");
    const Json written = read_json_file(at / "model/adapter_config.json");
    CHECK(written["base_model_name_or_path"] == "models/base");
    CHECK(written["task_type"] == "CAUSAL_LM");
    const std::int64_t written_bytes = 4 * 4 * run.model->parameters().trainable_count();  // with masters
    CHECK(checkpoint_bytes(plain, DType::f32) >= written_bytes);
    CHECK(checkpoint_bytes(plain, DType::f32) < written_bytes + 200);

    Stack other(plain, DType::f32, Device::cpu);
    randomise(other, 3);
    for (Parameter& p : other.parameters().all())
      if (p.name.find(".lora_") != p.name.npos) p.value.zero();
    Optimizer fresh(other.parameters(), {});
    CHECK(checkpoints.load(at, other, fresh).step == 9);
    for (std::size_t i = 0; i < saved.size(); ++i) CHECK_BITS(other.parameters().all()[i].value, saved[i]);
  }
}

TEST_CASE("checkpoint: an asynchronous save has the bytes of the moment of its call, on every device") {
  for (const Device device : {Device::cpu, Device::guard})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const TestDir dir, async_dir;
      const DrawnRun t(dtype, 6, OptimizerKind::adamw, "ME*-", device);
      CheckpointSection section = section_in(async_dir);
      section.is_async = true;
      Checkpoints sync(section_in(dir), "seed: 1\n"), async(section, "seed: 1\n");
      for (std::int64_t step = 1; step <= 3; ++step) {
        const fs::path want = sync.save(t.loaded, *t.optimizer, state_after(step)),
                       got = async.save(t.loaded, *t.optimizer, state_after(step));
        CHECK(got == section.checkpoint_dir / want.filename());
        // DrawnRun goes on at once.
        for (const Parameter& p : t.loaded.model->parameters().all()) p.value.fill(static_cast<double>(step));
        for (const StateTensor& s : t.optimizer->state()) s.value.fill(0.5 * static_cast<double>(step));
      }
      async.finish();
      CHECK(files_below(async_dir / "runs") == files_below(dir / "runs"));
      std::vector<std::int64_t> steps;
      for (const Checkpoints::Published& p : async.take_published()) {
        CHECK(CheckpointFolder::steps_in(p.path) == p.steps);
        CHECK(p.bytes > 1000);
        steps.push_back(p.steps);
      }
      CHECK(steps == std::vector<std::int64_t>{1, 2, 3});
      CHECK(async.take_published().empty());
      CHECK(sync.take_published().size() == 3);
    }
}

TEST_CASE("checkpoint: losses and pruning of asynchronous saves keep their order") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  section.max_recent_checkpoints = 2;
  section.is_async = true;
  const DrawnRun t(DType::f32, 4, OptimizerKind::adamw, "-");
  {
    Checkpoints checkpoints(section, "");
    for (std::int64_t step = 1; step <= 5; ++step)
      checkpoints.note_losses(checkpoints.save(t.loaded, *t.optimizer, state_after(step)),
                              {{"default", step == 2 ? 1.0 : 2.0}});
  }  // waits
  CHECK(names_in(dir / "runs") == std::vector<std::string>{"LATEST", "LOWEST_VAL", "epoch_1_step_1",
                                                           "epoch_1_step_3", "epoch_1_step_4"});
  CHECK(fs::read_symlink(dir / "runs" / "LOWEST_VAL") == "epoch_1_step_1");
}

TEST_CASE("checkpoint: an asynchronous save that fails is told, and leaves what there was") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  section.is_async = true;
  const DrawnRun t(DType::f32, 4, OptimizerKind::adamw, "-");
  Checkpoints checkpoints(section, "");
  checkpoints.save(t.loaded, *t.optimizer, state_after(1));
  checkpoints.finish();
  CHECK(checkpoints.take_published().size() == 1);
  const auto before = files_below(dir / "runs");
  // A folder of the checkpoint's name cannot be set aside, because `abandoned` is a file.
  spit(dir / "runs" / "abandoned", "");
  checkpoints.save(t.loaded, *t.optimizer, state_after(1));
  const auto fails = [&](auto&& call) {
    CHECK_THROWS_WITH_AS(call(), doctest::Contains("epoch_1_step_0: cannot be written"), Error);
  };
  fails([&] {
    while (checkpoints.take_published().empty()) std::this_thread::yield();
  });
  fails([&] { checkpoints.save(t.loaded, *t.optimizer, state_after(2)); });
  fs::remove(dir / "runs" / "abandoned");
  CHECK(files_below(dir / "runs") == before);
}

TEST_CASE("checkpoint: errors name the file and what does not fit") {
  const TestDir dir;
  Checkpoints checkpoints(section_in(dir), "");
  const DrawnRun t(DType::f32, 5, OptimizerKind::adamw, "-");
  const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(3));
  // The cases up to here are intact checkpoints that do not fit the run. The damaged ones below need a
  // checkpoint without checksums, or the checksums would be the first to complain.
  const auto refuses = [&](const DrawnRun& into, const char* text) {
    CHECK_THROWS_WITH_AS(checkpoints.load(at, *into.loaded.model, *into.optimizer), doctest::Contains(text),
                         Error);
  };
  refuses(DrawnRun(DType::f32, 5, OptimizerKind::sgd, "-"), "another optimizer");
  refuses(DrawnRun(DType::f32, 5, OptimizerKind::adamw, "--"), "backbone.layers.1");
  make_old(at);
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
  const DrawnRun t(DType::f32, 6, OptimizerKind::adamw, "-");
  CHECK_THROWS_WITH_AS(Checkpoints(section_in(dir), "").save(t.loaded, *t.optimizer, state_after(1)),
                       doctest::Contains("epoch_1_step_0"), Error);
}

TEST_CASE("checkpoint: every flipped byte and every cut is found, and the one before is named") {
  const TestDir dir;
  Checkpoints checkpoints(section_in(dir), "seed: 1\n");
  const DrawnRun t(DType::f32, 7, OptimizerKind::adamw, "-");
  for (const std::int64_t step : {2, 4, 6})
    checkpoints.note_losses(checkpoints.save(t.loaded, *t.optimizer, state_after(step)), {{"default", 1.0}});
  const fs::path runs = dir / "runs", newest = runs / "epoch_1_step_5";
  const auto refusal = [&](const fs::path& checkpoint) {
    try {
      checkpoints.load(checkpoint, *t.loaded.model, *t.optimizer);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("loaded");
  };
  CHECK(refusal(newest) == "loaded");
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(newest))
    if (entry.is_regular_file()) files.push_back(entry.path());
  REQUIRE(files.size() == 8);
  for (const fs::path& file : files) {
    CAPTURE(file);
    const std::string good = slurp(file);
    for (const std::size_t at : {std::size_t{0}, good.size() / 2, good.size() - 2}) {
      std::string bad = good;
      bad[at] ^= 1;
      spit(file, bad);
      const std::string text = refusal(newest);
      CHECK_MESSAGE(text.find(newest.string()) != text.npos, text);
      CHECK_MESSAGE(text.ends_with("--set checkpoint.restore_from=epoch_1_step_3"), text);
    }
    spit(file, good.substr(0, good.size() - 3));
    CHECK(refusal(newest).find("restore_from=epoch_1_step_3") != std::string::npos);
    fs::remove(file);
    CHECK(refusal(newest).find(file.filename().string()) != std::string::npos);
    spit(file, good);
  }
  // The message suggests the newest intact checkpoint, and none when all are damaged.
  spit(newest / "config.yaml", "x");
  spit(runs / "epoch_1_step_3" / "config.yaml", "x");
  CHECK(refusal(newest).ends_with("restore_from=epoch_1_step_1"));
  spit(runs / "epoch_1_step_1" / "config.yaml", "x");
  CHECK(refusal(newest).find("restore_from") == std::string::npos);
}

TEST_CASE("checkpoint: one of an older program, without checksums and serial, is loaded") {
  const TestDir dir;
  const DrawnRun t(DType::f32, 7, OptimizerKind::adamw, "-");
  {
    Checkpoints old(section_in(dir), "");
    for (const std::int64_t step : {2, 4}) make_old(old.save(t.loaded, *t.optimizer, state_after(step)));
  }
  const fs::path runs = dir / "runs";
  Checkpoints checkpoints(section_in(dir), "");
  checkpoints.recover();
  REQUIRE(checkpoints.find() == runs / "epoch_1_step_3");
  CHECK(checkpoints.load(runs / "epoch_1_step_3", *t.loaded.model, *t.optimizer).step == 4);
  checkpoints.note_losses(runs / "epoch_1_step_3", {{"default", 1.0}});
  CHECK_FALSE(fs::exists(runs / "epoch_1_step_3" / "checksums.json"));
  // Without serial numbers, LATEST decides.
  point_to(runs / "LATEST", "epoch_1_step_1");
  CHECK(checkpoints.find() == runs / "epoch_1_step_1");
}

TEST_CASE("checkpoint: a router that an older program kept in bf16 comes back as its f32 master") {
  const TestDir dir;
  Checkpoints checkpoints(section_in(dir), "");
  const DrawnRun saved(DType::bf16, 11, OptimizerKind::adamw, "ME");
  const fs::path at = checkpoints.save(saved.loaded, *saved.optimizer, state_after(9));
  const std::string gate = "backbone.layers.1.mixer.gate.weight";
  const Tensor master = saved.loaded.model->parameters().get(gate).value;
  REQUIRE(master.dtype() == DType::f32);
  // As that program wrote it: the weight rounded, and its master beside the moments.
  const auto rewrite = [&](const fs::path& path, bool of_model) {
    std::vector<TensorSource> all;
    {
      const SafetensorsFile file(path);
      for (const StoredTensor& t : file.tensors())
        all.push_back(source_of(t.name, file.tensor(t.name),
                                of_model && t.name == gate ? DType::bf16 : dtype_of_stored(t.dtype).value()));
    }
    if (!of_model) all.push_back(source_of("master." + gate, master, DType::f32));
    write_safetensors(path, std::move(all));
  };
  CHECK(SafetensorsFile(at / "model/model.safetensors").at(gate).dtype == "F32");
  rewrite(at / "model/model.safetensors", true);
  rewrite(at / "optim/optimizer.safetensors", false);
  fs::remove(at / "optim/index.json");
  make_old(at);
  const DrawnRun other(DType::bf16, 12, OptimizerKind::adamw, "ME");
  checkpoints.load(at, *other.loaded.model, *other.optimizer);
  const auto &a = saved.loaded.model->parameters().all(), &b = other.loaded.model->parameters().all();
  for (std::size_t i = 0; i < a.size(); ++i) CHECK_BITS(b[i].value, a[i].value);
  const auto x = saved.optimizer->state(), y = other.optimizer->state();
  REQUIRE(x.size() == y.size());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK_BITS(y[i].value, x[i].value);
}

TEST_CASE("checkpoint: state keeps what the rows are made of, and the moment that templates show") {
  const TestDir dir;
  Checkpoints checkpoints(section_in(dir), "");
  const DrawnRun t(DType::f32, 7, OptimizerKind::adamw, "-");
  RunState state = state_after(3);
  CHECK_FALSE(checkpoints.moment_of(checkpoints.save(t.loaded, *t.optimizer, state)).has_value());
  state = state_after(4);
  state.rows = {{"data file 1", "/data/a.jsonl", {12, 0xFFFFFFFF}},
                {"chat template", "the given chat template", {}}};
  state.moment = parse_moment("2026-11-30T23:59:59.999999+09:00");
  const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state);
  const RunState read = checkpoints.load(at, *t.loaded.model, *t.optimizer);
  CHECK(read.rows == state.rows);
  CHECK(read.moment == state.moment);
  CHECK(checkpoints.moment_of(at) == state.moment);
  spit(at / "state.json", "{");
  CHECK_FALSE(checkpoints.moment_of(at).has_value());
}

TEST_CASE("checkpoint: state that no run can have is refused") {
  const TestDir dir;
  Checkpoints checkpoints(section_in(dir), "");
  const DrawnRun t(DType::f32, 7, OptimizerKind::adamw, "-");
  const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(9)), file = at / "state.json";
  make_old(at);
  const Json good = read_json_file(file);
  const std::vector<std::pair<Json, const char*>> cases{
      {{{"step", 99999}}, "'step'"},
      {{{"optimizer_steps", 9}}, "'optimizer_steps'"},
      {{{"scheduler_steps", 9}}, "'scheduler_steps'"},
      {{{"schedule_length", -1}}, "'schedule_length'"},
      {{{"skipped_steps", 2}}, "'skipped_steps'"},
      {{{"nonfinite_in_a_row", 2}}, "'nonfinite_in_a_row'"},
      {{{"samples", 8}}, "'samples'"},
      {{{"early_stopping", {{"metric", 1}}}}, "'early_stopping.metric'"},
      {{{"early_stopping", {{"metric", "a"}, {"best_step", 3}, {"waited", 0}, {"last_step", 9}}}},
       "'early_stopping.last_step'"},
      {{{"early_stopping", {{"metric", "a"}, {"best_step", 7}, {"waited", 0}, {"last_step", 6}}}},
       "'early_stopping.best_step'"},
      {{{"early_stopping", {{"metric", "a"}, {"best_step", 3}, {"waited", 10}, {"last_step", 6}}}},
       "'early_stopping.waited'"},
      {{{"early_stopping",
         {{"metric", "a"}, {"best_loss", "x"}, {"best_step", 3}, {"waited", 1}, {"last_step", 6}}}},
       "'early_stopping.best_loss'"},
      {{{"step", std::int64_t{1} << 60}}, "'step'"},
      {{{"samples", std::uint64_t{1} << 63}}, "'samples'"},
      {{{"loader", {{"epoch", 10}, {"next_index", 40}, {"rows", 100}, {"seed", 7}}}}, "'loader.epoch'"},
      {{{"loader", {{"epoch", 1}, {"next_index", 101}, {"rows", 100}, {"seed", 7}}}}, "'loader.next_index'"},
      {{{"moment", "today"}}, "'moment'"},
      {{{"rows", {{{"role", "a"}, {"place", "b"}, {"bytes", 1}, {"crc32c", std::int64_t{1} << 32}}}}},
       "'rows[0].crc32c'"},
      {{{"rows", {{{"role", "a"}, {"place", "b"}, {"bytes", -1}, {"crc32c", 1}}}}}, "'rows[0].bytes'"},
      {{{"validation_rows", {1}}}, "'validation_rows'"},
      {{{"validation_rows", {{"a", {1}}}}}, "'validation_rows.a[0]'"}};
  for (const auto& [change, field] : cases) {
    CAPTURE(field);
    Json state = good;
    state.update(change);
    spit(file, dump_json(state));
    CHECK_THROWS_WITH_AS(read_run_state(file), doctest::Contains(field), Error);
  }
}

TEST_CASE(
    "checkpoints: the layout of ranks that begin at another one than the first is read as it was written") {
  const TestDir dir;
  RankLayout layout{
      {.tp = 2, .dp_shard = 3, .pp = 2}, ZeroLevel::gradients, "rank 0: block 0; rank 1: block 1"};
  write_run_state(dir / "state.json", {}, {}, layout);
  CHECK(slurp(dir / "state.json").find("first_rank") == std::string::npos);
  CHECK(read_rank_layout(dir / "state.json") == layout);
  const std::string at_0 = to_string(layout);
  layout.grid.first_rank = 4;
  write_run_state(dir / "state.json", {}, {}, layout);
  CHECK(read_rank_layout(dir / "state.json") == layout);
  CHECK(at_0 ==
        "12 ranks (tp 2, pp 2, dp_shard 3, dp_replicate 1, ZeRO level 2; rank 0: block 0; rank 1: block 1)");
  CHECK(to_string(layout) ==
        "12 ranks from rank 4 (tp 2, pp 2, dp_shard 3, dp_replicate 1, ZeRO level 2; rank 0: block 0; "
        "rank 1: block 1)");
}
