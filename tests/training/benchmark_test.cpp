#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/mpirun.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// A recipe as AutoModel's examples/llm_benchmark/nemotron have it, of a tiny model.
class BenchmarkDir : public RunDir {
 public:
  BenchmarkDir() {
    spit(*this / "recipe.yaml", R"(recipe: BenchmarkingRecipeForNextTokenPrediction
seed: 1234
step_scheduler: {global_batch_size: 8, local_batch_size: 2, max_steps: 5, num_epochs: 1, ckpt_every_steps: 1}
benchmark: {warmup_steps: 2, peak_tflops: 989, nsys_start: -1, nsys_end: -1, nsys_ranks: [], num_nodes: 1,
            json_output_path: out.json}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config: {pretrained_model_name_or_path: model}
  torch_dtype: f32
  backend: {fake_balanced_gate: true}
dataset: {_target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset, seq_len: 32}
optimizer: {_target_: torch.optim.Adam, lr: 1e-4}
lr_scheduler: {lr_decay_style: cosine}
clip_grad_norm: {max_norm: 1.0}
validation_dataset: {_target_: squad, dataset_name: absent.json}
)");
  }
  Json results() const { return parse_json(slurp(*this / "out.json"), "out.json"); }
};

}  // namespace

TEST_CASE(
    "benchmark: a recipe of AutoModel's class prints its table and writes its results, and nothing else") {
  const BenchmarkDir dir;
  const ProcessResult run = dir.train();
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.out.find(
            "5 steps, 2 of them warm-up; 8 x 32 tokens a step on 1 rank, 2 rows of a replica at a time\n") ==
        0);
  for (const char* text : {"warm-up 0 ", "warm-up 1 ", "\n              4 ", "\nmean step ", "\nMFU "})
    CHECK(run.out.find(text) != std::string::npos);
  CHECK(run.out.find("warm-up 2 ") == std::string::npos);
  for (const char* key :
       {"lr_scheduler", "clip_grad_norm", "validation_dataset", "step_scheduler.num_epochs"})
    CHECK(run.err.find(key) != std::string::npos);
  for (const char* name : {"training.jsonl", "checkpoints", "straight"}) CHECK_FALSE(fs::exists(dir / name));
  const Json json = dir.results();
  CHECK(json["training_steps"] == 3);
  CHECK(json["world_size"] == 1);
  CHECK(json["seq_len"] == 32);
  CHECK(json["step_seconds"].size() == 5);
  const double seconds = json["avg_iter_time_seconds"], measured = json["training_time_seconds"];
  CHECK(seconds == doctest::Approx(measured / 3));
  CHECK(json["tokens_per_second"].get<double>() == doctest::Approx(8 * 32 / seconds));
  CHECK(json["avg_mfu_percent"].get<double>() ==
        doctest::Approx(json["tflops_per_gpu"].get<double>() / seconds / 989 * 100));
  // Ids are drawn from the model's vocabulary of 2,048.
  CHECK(json["loss_first"].get<double>() == doctest::Approx(std::log(2048)).epsilon(0.01));
}

// The rate stays that of the optimizer, and large gradients are not cut: what a training run without these
// does.
TEST_CASE("benchmark: steps are those of training without schedule and clipping") {
  const BenchmarkDir dir;
  const Words common{"optimizer.lr=0.05", "dataset.num_samples=40"};
  REQUIRE(dir.train(common).exit_code == 0);
  Words training = common;
  for (const char* o :
       {"recipe=null", "lr_scheduler=null", "clip_grad_norm.max_norm=.inf", "dataset.vocab_size=2048",
        "validation_dataset=null", "checkpoint.enabled=false", "dataloader.shuffle=false"})
    training.emplace_back(o);
  const ProcessResult run = dir.train(training);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const auto log = read_jsonl(dir / "checkpoints" / "training.jsonl");
  REQUIRE(log.size() == 5);
  CHECK(dir.results()["loss_first"] == log.front()["loss"]);
  CHECK(dir.results()["loss_last"] == log.back()["loss"]);
}

TEST_CASE("benchmark: several ranks, each kind of figure is of the whole job") {
  const BenchmarkDir dir;
  REQUIRE(dir.train().exit_code == 0);
  const Json alone = dir.results();
  for (const Words& grid : {Words{"distributed.ep_size=2"},
                            Words{"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b",
                                  "distributed.pipeline.pp_microbatch_size=1"}}) {
    CAPTURE(grid[0]);
    fs::remove(dir / "out.json");
    const ProcessResult run = run_process(mpirun(2, RunDir::train_command(grid)), dir.path());
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const Json json = dir.results();
    CHECK(json["world_size"] == 2);
    CHECK(json["step_tflop"].get<double>() ==
          doctest::Approx(alone["step_tflop"].get<double>()).epsilon(1e-12));
    CHECK(json["tflops_per_gpu"] == alone["tflops_per_gpu"]);
    CHECK(json["loss_last"].get<double>() == doctest::Approx(alone["loss_last"].get<double>()).epsilon(1e-5));
    CHECK(json["tokens_per_second"].get<double>() ==
          doctest::Approx(2 * json["tokens_per_second_per_rank"].get<double>()));
    // One rank prints.
    CHECK(run.out.find("mean step") == run.out.rfind("mean step"));
  }
}

TEST_CASE("benchmark: what it cannot measure is refused, with and without --check") {
  const BenchmarkDir dir;
  const std::vector<std::pair<const char*, const char*>> cases{
      {"benchmark.warmup_steps=5",
       "--set benchmark.warmup_steps: is 5, which leaves none of 5 steps (step_scheduler.max_steps) to "
       "measure"},
      {"step_scheduler.max_steps=null", "step_scheduler.max_steps: is missing; this recipe is a benchmark"},
      {"dataset={_target_: squad, dataset_name: samples/train.json}",
       "is squad, but this recipe is a benchmark (`recipe`); want mock_iterable_dataset"},
      {"packed_sequence={packed_sequence_size: 64}",
       "packed_sequence.packed_sequence_size: is 64, but this recipe is a benchmark (`recipe`); want 0"},
      {"model.backend.fake_gate_noise=0.5", "noise in the balanced gate is not in this build"},
      {"dataset.vocab_size=4000", "mock data set: vocab_size is 4000, the model's is 2048"},
      {"benchmark.json_output_path=nowhere/out.json", "nowhere"}};
  for (const auto& [change, message] : cases)
    for (const bool check : {false, true}) {
      CAPTURE(change);
      CAPTURE(check);
      Words command = RunDir::train_command({change});
      if (check) command.emplace_back("--check");
      const ProcessResult run = run_process(command, dir.path());
      CHECK(run.exit_code == 2);
      CHECK_MESSAGE(run.err.find(message) != std::string::npos, run.err);
    }
  Words good = RunDir::train_command({});
  good.emplace_back("--check");
  const ProcessResult run = run_process(good, dir.path());
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("recipe: \"BenchmarkingRecipeForNextTokenPrediction\"\n") == 0);
  CHECK(run.out.find("vocab_size: 2048\n") != std::string::npos);
}
