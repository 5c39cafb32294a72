#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "data/peft/peft_directory.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/test_training.h"
#include "train/finetune/adapters.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

/// Dtypes of the weights, and whether the adapters have f32.
struct Kind {
  DType dtype;
  bool f32 = false;
};
constexpr Kind kinds[] = {{DType::f32}, {DType::bf16}, {DType::bf16, true}};

/// Adapters of everything: the ranks of routed experts differ from those of linear layers.
ModelSetup adapted(const Kind& kind, bool rank_stabilised = false) {
  ModelSetup config = config_of(kind.dtype);
  for (const TensorSpec& spec : tensor_specs(config))
    if (spec.linear)
      config.choices.lora.modules[spec.id.module()] = {
          .rank = spec.experts ? 2 : 3, .alpha = spec.experts ? 5.5 : 6, .rank_stabilised = rank_stabilised};
  config.choices.lora.f32 = kind.f32;
  config.choices.frozen = base_parameters(config);
  return config;
}

std::vector<Tensor> adapters_and_state(const Training& training) {
  std::vector<Tensor> all;
  for (const NamedTensor& t : named_tensors(*training.loaded.model, TensorSet::adapters))
    if (!t.value.is_meta()) all.push_back(t.value);
  for (const StateTensor& t : training.optimizer->state()) all.push_back(t.value);
  return all;
}

/// Whether this rank's adapters are, bit for bit, parts of those in a directory.
bool are_part_of(const Stack& model, const PeftDirectory& directory) {
  bool same = true;
  for (const NamedTensor& t : named_tensors(model, TensorSet::adapters)) {
    if (t.value.is_meta()) continue;
    const Tensor own = t.value.to(Device::cpu).reshape({-1}), all = directory.tensor(t.name).reshape({-1});
    same = same && own.dtype() == all.dtype();
    t.shard.value_or(Shard(t.value.shape()))
        .for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
          same = same && std::memcmp(own.narrow(0, local, count).host_bytes(),
                                     all.narrow(0, global, count).host_bytes(),
                                     static_cast<std::size_t>(count * size_of(own.dtype()))) == 0;
        });
  }
  return same;
}

void train_save_resume(const GridCase& grid, const Kind& kind, Device device) {
  CAPTURE(name_of(grid));
  CAPTURE(kind.dtype);
  CAPTURE(kind.f32);
  CAPTURE(device);
  const SharedDir dir;
  const ModelSetup config = adapted(kind);
  Training run(grid, config, 5, OptimizerKind::adamw, device);
  Checkpoints checkpoints(section_in(dir.path()), "seed: 1\n", &test_world(), run.layout);
  run.train(0, 2);  // from the second step on A moves as well
  const fs::path at = checkpoints.save(run.loaded, *run.optimizer, run.state(2));
  const std::vector<Tensor> saved = copies(adapters_and_state(run)), all = copies(run.values());

  const PeftDirectory directory(at / "model", config);
  CHECK(directory.adapters().modules == config.choices.lora.modules);
  CHECK(directory.adapters().f32 == (kind.f32 || kind.dtype == DType::f32));
  CHECK(are_part_of(*run.loaded.model, directory));
  if (first()) {
    const auto files = files_below(at / "model");
    CHECK(files.size() == 2);
    CHECK(files.contains("adapter_config.json"));
    CHECK(files.contains("adapter_model.safetensors"));
    const auto sums = read_checksums(at);
    REQUIRE(sums);
    CHECK(sums->size() + 1 == files_below(at).size());
    CHECK_NOTHROW(check_sums(at, *sums));
    const bool has_masters = kind.dtype == DType::bf16 && !kind.f32;
    for (const auto& [name, value] : optimizer_of(at)) {
      CHECK_MESSAGE(contains(name, ".lora_"), name);
      CHECK((has_masters || !name.starts_with("master.")));
    }
    CHECK(optimizer_of(at).contains("master.lm_head.lora_A.weight") == has_masters);
  }
  run.train(2, 3);

  Training again(grid, config, 6, OptimizerKind::adamw, device);
  Checkpoints later(section_in(dir.path()), "", &test_world(), again.layout);
  REQUIRE(later.find() == at);
  CHECK(later.load(at, *again.loaded.model, *again.optimizer).step == 2);
  again.parallel->data().spread_values();
  CHECK(again.optimizer->steps() == 2);
  check_same(adapters_and_state(again), saved);
  check_same(again.values(), all);
  again.train(2, 3);
  CHECK(again.last.loss == run.last.loss);
  CHECK(again.last.grad_norm == run.last.grad_norm);
  check_same(again.values(), run.values());
}

}  // namespace

// Every grid has adapters with masters, and in turn one of the two kinds without.
TEST_CASE(
    "adapter checkpoints of ranks: training goes on with the same bits, on every grid, level and device" *
    on_ranks({2, 4})) {
  bool wide = false;
  for (const GridCase& grid : grids()) {
    train_save_resume(grid, kinds[1], Device::cpu);
    train_save_resume(grid, kinds[wide ? 2 : 0], Device::cpu);
    wide = !wide;
  }
  train_save_resume(data_parallel(ZeroLevel::parameters), {DType::bf16}, Device::guard);
}

// The files of adapters are the same on all layouts, and the tests of whole models load those of the
// optimizer from any layout to any other. So a checkpoint in f32 goes to its own layout and to one half of
// the list away, one in bf16 to the layouts that follow these two.
TEST_CASE("adapter checkpoints of ranks: each layout takes over those of several others, with every bit" *
          on_ranks({3, 4})) {
  const std::vector<GridCase> layouts = grids();
  const std::size_t count = layouts.size();
  for (const Kind& kind : {kinds[0], kinds[1]})
    for (std::size_t i = 0; i < count; ++i) {
      const GridCase& from = layouts[i];
      CAPTURE(kind.dtype);
      CAPTURE(name_of(from));
      const SharedDir dir;
      const ModelSetup config = adapted(kind, kind.dtype == DType::f32);
      Training run(from, config, 5);
      const CheckpointSection section = section_in(dir.path());
      run.train(0, 2);
      const fs::path at =
          Checkpoints(section, "", &test_world(), run.layout).save(run.loaded, *run.optimizer, run.state(2));
      const auto saved = first() ? std::optional<WholeCheckpoint>(at) : std::nullopt;
      CheckpointSection elsewhere = section;
      const std::size_t near = kind.dtype == DType::f32 ? i : i + 1, far = near + (count + 1) / 2;
      for (const std::size_t j : {near % count, far % count}) {
        const GridCase& to = layouts[j];
        CAPTURE(name_of(to));
        Training other(to, config, 6);
        CHECK(Checkpoints(section, "", &test_world(), other.layout)
                  .load(at, *other.loaded.model, *other.optimizer)
                  .step == 2);
        other.parallel->data().spread_values();
        elsewhere.checkpoint_dir = (dir / cat("other", j)).string();
        const fs::path again = Checkpoints(elsewhere, "", &test_world(), other.layout)
                                   .save(other.loaded, *other.optimizer, other.state(2));
        if (saved) check_same_checkpoint(again, *saved);
        barrier();
      }
      // One rank alone, and the ranks from its checkpoint.
      const fs::path alone_dir = dir / "alone";
      elsewhere.checkpoint_dir = alone_dir.string();
      if (saved) {
        LoadedModel alone{.groups = nullptr,
                          .model = std::make_unique<Stack>(config, kind.dtype, Device::cpu),
                          .parallel = nullptr,
                          .files = run.loaded.files};
        draw(*alone.model, 8);
        Optimizer optimizer(alone.model->parameters(), {});
        Checkpoints(section, "").load(at, *alone.model, optimizer);
        check_same_checkpoint(Checkpoints(elsewhere, "").save(alone, optimizer, run.state(2)), *saved);
      }
      barrier();
      Training back(from, config, 9);
      Checkpoints(elsewhere, "", &test_world(), back.layout)
          .load(alone_dir / at.filename(), *back.loaded.model, *back.optimizer);
      back.parallel->data().spread_values();
      check_same(back.values(), run.values());
      barrier();
    }
}

TEST_CASE("adapter checkpoints of ranks: an asynchronous save has the bytes of the moment of its call" *
          on_ranks({2, 4})) {
  for (const GridCase& grid : grids()) {
    CAPTURE(name_of(grid));
    const SharedDir dir;
    Training run(grid, adapted({DType::bf16}), 5);  // with masters
    CheckpointSection section = section_in(dir.path());
    Checkpoints sync(section, "", &test_world(), run.layout);
    section.checkpoint_dir = (dir / "async").string();
    section.is_async = true;
    Checkpoints async(section, "", &test_world(), run.layout);
    for (const std::int64_t step : {1, 2, 3}) {
      sync.save(run.loaded, *run.optimizer, run.state(step));
      async.save(run.loaded, *run.optimizer, run.state(step));
      run.train(static_cast<int>(step) - 1, static_cast<int>(step));  // while the threads of all ranks write
    }
    async.finish();
    CHECK(async.take_published().size() == 3);
    if (first()) {
      CHECK(files_below(dir / "async") == files_below(dir / "runs"));
      CHECK(slurp(dir / "runs/epoch_0_step_0/model/adapter_model.safetensors") !=
            slurp(dir / "runs/epoch_0_step_2/model/adapter_model.safetensors"));
    }
  }
}

TEST_CASE("adapter checkpoints of ranks: masters become weights, and weights masters") {
  const SharedDir dir;
  const GridCase grid = data_parallel(ZeroLevel::optimizer);
  const CheckpointSection section = section_in(dir.path());
  Training narrow(grid, adapted({DType::bf16}), 5);
  narrow.train(0, 2);
  const fs::path at = Checkpoints(section, "", &test_world(), narrow.layout)
                          .save(narrow.loaded, *narrow.optimizer, narrow.state(2));
  Training wide(grid, adapted({DType::bf16, true}), 6);
  Checkpoints(section, "", &test_world(), wide.layout).load(at, *wide.loaded.model, *wide.optimizer);
  wide.parallel->data().spread_values();
  const fs::path of_wide =
      Checkpoints(section, "", &test_world(), wide.layout).save(wide.loaded, *wide.optimizer, wide.state(3));
  if (first()) {
    const PeftDirectory got(of_wide / "model", adapted({DType::bf16, true})),
        rounded(at / "model", adapted({DType::bf16}));
    const auto state = optimizer_of(at), wide_state = optimizer_of(of_wide);
    for (const std::string& name : got.tensor_names()) {
      CAPTURE(name);
      CHECK_BITS(got.tensor(name), state.at("master." + name).reshape(got.tensor(name).shape()));
      CHECK_BITS(got.tensor(name).to(DType::bf16), rounded.tensor(name));
      CHECK_FALSE(wide_state.contains("master." + name));
    }
  }
  barrier();
  Training back(grid, adapted({DType::bf16}), 7);
  Checkpoints(section, "", &test_world(), back.layout).load(of_wide, *back.loaded.model, *back.optimizer);
  back.parallel->data().spread_values();
  check_same(back.values(), narrow.values());
}

TEST_CASE(
    "adapter checkpoints of ranks: those of other adapters, and of whole models, are refused on all ranks") {
  const SharedDir dir;
  const GridCase grid = data_parallel(ZeroLevel::parameters);
  const ModelSetup config = adapted({DType::f32});
  const auto save = [&](const ModelSetup& of, const char* name) {
    Training run(grid, of, 5);
    CheckpointSection section = section_in(dir.path());
    section.checkpoint_dir = (dir / name).string();
    return Checkpoints(section, "", &test_world(), run.layout).save(run.loaded, *run.optimizer, run.state(1));
  };
  const fs::path adapters = save(config, "adapters"), whole = save(config_of(DType::f32), "whole");
  const auto check_refused = [&](const fs::path& at, const ModelSetup& wanted, const std::string& text) {
    Training run(grid, wanted, 6);
    const std::vector<Tensor> before = copies(run.values());
    Checkpoints checkpoints(section_in(dir.path()), "", &test_world(), run.layout);
    for (const std::string& message :
         messages_of([&] { checkpoints.load(at, *run.loaded.model, *run.optimizer); }))
      CHECK_MESSAGE(contains(message, cat((at / "model").string(), ": ", text)), message);
    check_same(run.values(), before);
  };
  check_refused(
      whole, config,
      "holds the weights of a model, and this run trains adapters (section peft); name a model to adapt in "
      "model.pretrained_model_name_or_path");
  check_refused(
      adapters, config_of(DType::f32),
      "holds adapters, and this run trains the weights of a model; to begin with adapters, add the section "
      "peft with adapter_path");
  const std::string other =
      "holds adapters of other modules, ranks or scales than the section peft asks for: ";
  ModelSetup wanted = config;
  wanted.choices.lora.modules[head_name()].rank = 4;
  check_refused(adapters, wanted, cat(other, "lm_head has rank 3 and scale 2, want 4 and 1.5"));
  wanted = config;
  wanted.choices.lora.modules[head_name()].alpha = 12;
  check_refused(adapters, wanted, cat(other, "lm_head has rank 3 and scale 2, want 3 and 4"));
  wanted = config;
  wanted.choices.lora.modules.erase(head_name());
  check_refused(adapters, wanted, cat(other, "it has one of lm_head"));
  ModelSetup fewer = config;
  fewer.choices.lora.modules.erase(mixer_name(1, "experts.up_proj"));
  fewer.choices.frozen = base_parameters(fewer);
  check_refused(save(fewer, "fewer"), config,
                cat(other, "it has none of backbone.layers.1.mixer.experts.up_proj"));
}
