#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// Runs that train a model to denoise (docs/block_diffusion.md).

namespace {

namespace fs = std::filesystem;

/// Fresh weights of the golden's shape, 80 rows of the golden of Ministral 3, eight steps in which learning
/// has an effect.
std::string recipe() {
  const auto golden = [](const char* name) { return source_path(cat("tests/goldens/", name)); };
  return cat(R"(seed: 7
step_scheduler:
  {global_batch_size: 8, local_batch_size: 4, max_steps: 8, num_epochs: 100, ckpt_every_steps: 5,
   val_every_steps: 4, save_checkpoint_every_epoch: false}
model:
  _target_: from_config
  config: )",
             golden("nemotron_labs_diffusion"), R"(
  torch_dtype: f32
  dlm_paradigm: block_diff
checkpoint: {enabled: true, checkpoint_dir: straight}
dllm: {mode: hybrid, ar_loss_alpha: 0.3, pad_block_size: 4}
dataset: {_target_: tokens, path: )",
             golden("ministral3/tokens.safetensors"), R"(}
validation_dataset: {_target_: tokens, path: )",
             golden("ministral3/tokens.safetensors"), R"(, limit_dataset_samples: 16}
dataloader: {shuffle: true}
optimizer: {_target_: torch.optim.AdamW, lr: 0.01, weight_decay: 0.1}
)");
}

class DenoisingDir : public TestDir {
 public:
  DenoisingDir() {
    spit(*this / "recipe.yaml", recipe());
    wait_politely();
  }
  ProcessResult train(const Words& overrides) const {
    return must_run(run_process(RunDir::train_command(overrides), path()));
  }
};

const Words bidirectional{"model.dlm_paradigm=bidirectional"};
const Words by_blocks{"dllm.block_size=4", "model.block_size=2"};

double mean(const std::vector<double>& values, std::size_t begin, std::size_t count) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
  return std::accumulate(first, first + static_cast<std::ptrdiff_t>(count), 0.0) / static_cast<double>(count);
}

void check_close(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(2e-6));
}

}  // namespace

TEST_CASE("denoising: the loss falls, of noised tokens and of validation") {
  for (const Words& paradigm : {Words{}, bidirectional, by_blocks}) {
    const DenoisingDir dir;
    const ProcessResult run =
        dir.train(plus(paradigm, {"step_scheduler.max_steps=120", "step_scheduler.val_every_steps=40",
                                  "step_scheduler.ckpt_every_steps=1000"}));
    CHECK(run.err.find("denoising: ") != std::string::npos);
    const auto losses = logged(dir / "straight" / "training.jsonl", "loss"),
               validation = logged(dir / "straight" / "validation.jsonl", "val_loss");
    CAPTURE(mean(losses, 0, 10));
    CHECK(mean(losses, 110, 10) < 0.75 * mean(losses, 0, 10));
    CHECK(validation.back() < 0.95 * validation.front());  // the first is of step 40
  }
}

TEST_CASE("denoising: the rest of a run that goes on has the same bits") {
  for (const Words& paradigm : {Words{}, bidirectional, by_blocks}) {
    const DenoisingDir dir;
    dir.train(paradigm);
    const fs::path from = dir / "straight" / "epoch_0_step_4";
    REQUIRE(fs::exists(from));
    dir.train(
        plus(paradigm, {"checkpoint.checkpoint_dir=resumed", "checkpoint.restore_from=" + from.string()}));
    CHECK(differences(fs::canonical(dir / "straight" / "LATEST"),
                      fs::canonical(dir / "resumed" / "LATEST")) == "");
    const auto whole = repeatable(dir / "straight" / "training.jsonl"),
               rest = repeatable(dir / "resumed" / "training.jsonl");
    REQUIRE(rest.size() == 3);
    CHECK(rest == std::vector(whole.end() - 3, whole.end()));
  }
}

TEST_CASE("denoising: runs on two ranks have the losses of one") {
  const DenoisingDir dir;
  const std::vector<std::pair<const char*, Words>> grids{
      {"dp", {"step_scheduler.local_batch_size=2"}},
      {"tp", {"distributed.tp_size=2"}},
      {"sp", {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
      {"pp", {"distributed.pp_size=2", "distributed.pipeline={pp_microbatch_size: 2}"}}};
  for (const auto& [paradigm, words] :
       {std::pair("blocks", Words{}), std::pair("both_ways", bidirectional)}) {
    const Words noisy = plus(words, {"neftune=20"});
    dir.train(plus(noisy, {cat("checkpoint.checkpoint_dir=", paradigm)}));
    for (const auto& [name, grid] : grids) {
      CAPTURE(paradigm);
      CAPTURE(name);
      const std::string folder = cat(paradigm, "_", name);
      must_run(run_process(mpirun(2, RunDir::train_command(plus(
                                         plus(noisy, grid), {"distributed.strategy=fsdp2",
                                                             cat("checkpoint.checkpoint_dir=", folder)}))),
                           dir.path()));
      for (const auto& [log, field] : {std::pair("training.jsonl", "loss"), {"validation.jsonl", "val_loss"}})
        check_close(logged(dir / folder / log, field), logged(dir / paradigm / log, field));
    }
  }
}

TEST_CASE("denoising: a trained model is an ordinary checkpoint; what is evaluated is autoregressive") {
  const DenoisingDir dir;
  dir.train({});
  const fs::path model = fs::canonical(dir / "straight" / "LATEST");
  const Words eval{"eval", "recipe.yaml", "--model", model.string()};
  const ProcessResult refused = nemocube_in(dir.path(), eval);
  CHECK(refused.exit_code != 0);
  CHECK(refused.err.find("model.dlm_paradigm: is block_diff, but what is evaluated here is autoregressive") !=
        std::string::npos);
  const ProcessResult evaluated = must_run(nemocube_in(
      dir.path(),
      plus(eval, {"--set", "model.dlm_paradigm=autoregressive", "--set", "dllm=null", "--json"})));
  CHECK(parse_json(evaluated.out, "eval").at("samples") == 16);
  DenoisingDir causal;
  causal.train({"model.dlm_paradigm=autoregressive", "dllm=null"});
  CHECK(nemocube_in(causal.path(),
                    {"train", "recipe.yaml", "--set", "model.dlm_paradigm=null", "--set", "dllm=null"})
            .err.find("model.dlm_paradigm is missing: want autoregressive, bidirectional or block_diff") !=
        std::string::npos);
}
