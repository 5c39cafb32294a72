#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/cuda_programs.h"
#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// Whole runs of the program on a CUDA device: the software GPU where there is no other.

namespace {

namespace fs = std::filesystem;

double relative(double got, double want) { return std::abs(got - want) / std::abs(want); }

/// `nemocube ..` on the device, in `dir`; fails the test where it does not end well.
ProcessResult on_device(const fs::path& dir, const Words& words, const EmulatorOptions& options = {}) {
  const ProcessResult run = run_process(on_cuda(plus({program()}, words), options), dir);
  CAPTURE(words[0]);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return run;
}

Words train(const Words& overrides = {}) {
  Words words{"train", "recipe.yaml", "--device", "cuda"};
  for (const std::string& o : overrides) words.insert(words.end(), {"--set", o});
  return words;
}

/// The same on two ranks, which share the devices there are; on the software GPU `devices` of them, and the
/// seed is theirs.
ProcessResult on_two_ranks(const fs::path& dir, int devices, const Words& words) {
  const Words sharing = plus({program()}, plus(words, {"--share-device"}));
  const ProcessResult ended =
      run_process(mpirun(2, on_cuda(sharing, {.seed = devices, .devices = devices})), dir);
  CAPTURE(words[0]);
  CAPTURE(ended.err);
  REQUIRE(ended.exit_code == 0);
  return ended;
}

/// With few heads and long chunks: the software GPU spends most of a step in the scans.
struct DeviceRunDir : RunDir {
  DeviceRunDir() {
    Json config = read_json_file(*this / "model" / "config.json");
    config["mamba_num_heads"] = 2;
    config["chunk_size"] = 64;
    spit(*this / "model" / "config.json", config.dump());
  }
};

// A run that takes few and small steps, with a checkpoint in the middle and one at its end.
const Words short_run{"step_scheduler.max_steps=4", "step_scheduler.ckpt_every_steps=2",
                      "step_scheduler.val_every_steps=2", "step_scheduler.global_batch_size=2",
                      "step_scheduler.local_batch_size=1"};

/// The first command of README that begins with these words, with the lines that go on behind a backslash.
std::string command_of_readme(const std::string& words) {
  const std::string text = slurp(source_dir() / "README.md");
  const std::size_t begin = text.find("\n" + words);
  REQUIRE(begin != text.npos);
  std::size_t end = text.find('\n', begin + 1);
  while (text[end - 1] == '\\') end = text.find('\n', end + 1);
  return text.substr(begin + 1, end - begin - 1);
}

}  // namespace

TEST_CASE("cuda: README's line for the software GPU trains as it stands" * doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  if (!fs::exists(emulator_libraries() / "libcudart.so.13")) {
    MESSAGE("skipped: make emulator has not run");
    return;
  }
  const TestDir dir;  // the repository as the line sees it
  for (const char* name : {"configs", "data", "tools"})
    fs::create_directory_symlink(source_dir() / name, dir / name);
  fs::create_directory_symlink(build_dir(), dir / "build");
  const std::string line = command_of_readme("tools/cuda_emulator/run build/nemocube ");
  CAPTURE(line);
  const ProcessResult run = run_process(
      {"env", "CUDA_EMULATOR_LIBRARIES=" + emulator_libraries().string(), "sh", "-c", line}, dir.path());
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  CHECK(run.err.find("step 1 of 2 (100 %)") != std::string::npos);
  CHECK(run.err.find("warning") == std::string::npos);
}

TEST_CASE("cuda: 20 AdamW steps follow the losses, norms and rates of PyTorch" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  const TestDir dir;
  for (const char* name : {"config.json", "model.safetensors", "recipe.yaml", "tokens.safetensors"})
    fs::copy_file(source_dir() / "tests" / "goldens" / "train20" / name, dir / name);
  on_device(dir.path(), train());
  const auto got = read_jsonl(dir / "checkpoints" / "training.jsonl");
  const Json want = read_json_file(source_dir() / "tests" / "goldens" / "train20" / "expected.json");
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(relative(got[i]["loss"], want[i]["loss"]) <= 1e-4);
    CHECK(relative(got[i]["grad_norm"], want[i]["grad_norm"]) <= 1e-4);
  }
}

TEST_CASE("cuda: a run repeats its bits at every seed of the software GPU, and so does one that resumes" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  for (const char* dtype : {"f32", "bf16"}) {
    CAPTURE(dtype);
    const DeviceRunDir dir;
    const Words run = plus(short_run, {cat("model.torch_dtype=", dtype)});
    on_device(dir.path(), train(run));
    on_device(dir.path(),
              train(plus(run, {"checkpoint.checkpoint_dir=resumed",
                               "checkpoint.restore_from=" + (dir / "straight" / "epoch_0_step_1").string()})),
              {.seed = 2});
    CHECK(differences(dir / "straight" / "epoch_0_step_3", dir / "resumed" / "epoch_0_step_3") == "");
    // The CPU rounds in another order.
    const ProcessResult cpu = dir.train(plus(run, {"checkpoint.checkpoint_dir=cpu"}));
    REQUIRE(cpu.exit_code == 0);
    const auto here = read_jsonl(dir / "straight" / "training.jsonl"),
               there = read_jsonl(dir / "cpu" / "training.jsonl");
    REQUIRE(here.size() == 4);
    REQUIRE(there.size() == 4);
    const bool half = std::string_view(dtype) == "bf16";
    for (std::size_t i = 0; i < here.size(); ++i) {
      CAPTURE(i);
      CHECK(here[i]["num_label_tokens"] == there[i]["num_label_tokens"]);
      CHECK(relative(here[i]["loss"], there[i]["loss"]) <= (half ? 1e-2 : 1e-5));
      CHECK(relative(here[i]["grad_norm"], there[i]["grad_norm"]) <= (half ? 5e-2 : 1e-4));
    }
  }
}

TEST_CASE("cuda: a run that began on the CPU goes on on the device, and back, saved beside training" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  const DeviceRunDir dir;
  const Words run = plus(
      short_run, {"step_scheduler.max_steps=6", "lr_scheduler.lr_decay_steps=6", "checkpoint.is_async=true"});
  const auto from = [&](const std::string& folder, const std::string& checkpoint) {
    return plus(run, {"checkpoint.checkpoint_dir=" + folder,
                      "checkpoint.restore_from=" + (dir / checkpoint).string()});
  };
  REQUIRE(dir.train(run).exit_code == 0);
  on_device(dir.path(),
            train(plus(from("there", "straight/epoch_0_step_1"), {"step_scheduler.max_steps=4"})));
  REQUIRE(dir.train(from("back", "there/epoch_0_step_3")).exit_code == 0);
  const auto straight = read_jsonl(dir / "straight" / "training.jsonl"),
             there = read_jsonl(dir / "there" / "training.jsonl"),
             back = read_jsonl(dir / "back" / "training.jsonl");
  REQUIRE(straight.size() == 6);
  REQUIRE(there.size() == 2);
  REQUIRE(back.size() == 2);
  for (std::size_t step = 2; step < 6; ++step) {
    CAPTURE(step);
    const Json &got = step < 4 ? there[step - 2] : back[step - 4], &want = straight[step];
    for (const char* key : {"step", "num_label_tokens", "lr"}) CHECK(got[key] == want[key]);
    CHECK(relative(got["loss"], want["loss"]) <= 1e-5);
    CHECK(relative(got["grad_norm"], want["grad_norm"]) <= 1e-4);
  }
}

TEST_CASE("cuda: a run by CUDA graphs follows one without, and resumes with the same bits" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  const DeviceRunDir dir;
  const Words run = plus(short_run, {"cuda_graphs=true", "step_scheduler.max_steps=6"});
  const std::string log = on_device(dir.path(), train(run)).err;
  CHECK(log.find("cuda_graphs: the passes of a microbatch: 1 launch in the place of ") != std::string::npos);
  CHECK(log.find("cuda_graphs: the update: 1 launch in the place of ") != std::string::npos);
  CHECK(log.find("no graph of") == std::string::npos);
  on_device(dir.path(),
            train(plus(run, {"checkpoint.checkpoint_dir=resumed",
                             "checkpoint.restore_from=" + (dir / "straight" / "epoch_0_step_1").string()})),
            {.seed = 2});
  CHECK(differences(dir / "straight" / "epoch_0_step_5", dir / "resumed" / "epoch_0_step_5") == "");
  on_device(dir.path(), train(plus(run, {"checkpoint.checkpoint_dir=without", "cuda_graphs=false"})));
  const auto with = read_jsonl(dir / "straight" / "training.jsonl"),
             without = read_jsonl(dir / "without" / "training.jsonl");
  REQUIRE(with.size() == 6);
  REQUIRE(without.size() == 6);
  for (std::size_t i = 0; i < with.size(); ++i) {
    CAPTURE(i);
    CHECK(with[i]["num_label_tokens"] == without[i]["num_label_tokens"]);
    CHECK(relative(with[i]["loss"], without[i]["loss"]) <= 1e-5);
    CHECK(relative(with[i]["grad_norm"], without[i]["grad_norm"]) <= 1e-4);
  }
}

TEST_CASE(
    "cuda: two ranks over NCCL and over MPI train with the same bits where sums are in the order of ranks" *
    doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  const DeviceRunDir dir;
  const Words run = plus(short_run, {"distributed.ep_size=2", "deterministic_collectives=true"});
  const auto on_devices = [&](int devices, const Words& more) {
    return on_two_ranks(dir.path(), devices, train(plus(run, more))).err;
  };
  const std::string nccl = on_devices(2, {});
  if (cuda::backend_missing().empty() && !cuda::unavailable().empty())
    CHECK(nccl.find("[rank 0] tensors travel by NCCL 2.") != std::string::npos);
  const std::string mpi =
      on_devices(1, {"checkpoint.checkpoint_dir=resumed", "dist_env.backend=mpi",
                     "checkpoint.restore_from=" + (dir / "straight" / "epoch_0_step_1").string()});
  CHECK(mpi.find("[rank 0] tensors travel by MPI, by way of host memory") != std::string::npos);
  CHECK(differences(dir / "straight" / "epoch_0_step_3", dir / "resumed" / "epoch_0_step_3") == "");
  const Words on_cpu = plus(run, {"checkpoint.checkpoint_dir=cpu"});
  REQUIRE(run_process(mpirun(2, RunDir::train_command(on_cpu)), dir.path()).exit_code == 0);
  const auto here = read_jsonl(dir / "straight" / "training.jsonl"),
             there = read_jsonl(dir / "cpu" / "training.jsonl");
  REQUIRE(here.size() == there.size());
  for (std::size_t i = 0; i < here.size(); ++i) {
    CAPTURE(i);
    CHECK(relative(here[i]["loss"], there[i]["loss"]) <= 1e-5);
    CHECK(relative(here[i]["grad_norm"], there[i]["grad_norm"]) <= 1e-4);
  }
}

TEST_CASE(
    "cuda: a pipeline of two ranks resumes with the same bits, and tensor-parallel ranks evaluate what one "
    "rank "
    "does on the CPU" *
    doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  const DeviceRunDir dir;
  const Words run = plus(short_run, {"distributed.pp_size=2"});
  on_two_ranks(dir.path(), 2, train(run));
  on_two_ranks(
      dir.path(), 1,
      train(plus(run, {"checkpoint.checkpoint_dir=resumed",
                       "checkpoint.restore_from=" + (dir / "straight" / "epoch_0_step_1").string()})));
  CHECK(differences(dir / "straight" / "epoch_0_step_3", dir / "resumed" / "epoch_0_step_3") == "");
  const Words eval{"eval", "recipe.yaml", "--json", "--model", "straight/LATEST/model"};
  const ProcessResult one = run_process(plus({program()}, eval), dir.path());
  REQUIRE(one.exit_code == 0);
  const ProcessResult two =
      on_two_ranks(dir.path(), 2, plus(eval, {"--device", "cuda", "--set", "distributed.tp_size=2"}));
  CHECK(relative(parse_json(two.out, "eval")["val_loss"], parse_json(one.out, "eval")["val_loss"]) <= 1e-5);
}

TEST_CASE("cuda: eval and generate say what they say on the CPU" * doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  const DeviceRunDir dir;
  REQUIRE(dir.train(short_run).exit_code == 0);
  const auto words = [](const char* device) {
    return Words{"generate",
                 "--model",
                 "straight/LATEST",
                 "--json",
                 "--max-new-tokens",
                 "6",
                 "--ignore-eos",
                 "--prompt",
                 "Bees make honey. Question: Who makes honey? Answer:",
                 "--device",
                 device};
  };
  const ProcessResult cpu = run_process(plus({program()}, words("cpu")), dir.path());
  REQUIRE(cpu.exit_code == 0);
  CHECK(parse_json(on_device(dir.path(), words("cuda")).out, "generate")["ids"] ==
        parse_json(cpu.out, "generate")["ids"]);

  const Words eval{"eval", "recipe.yaml", "--json", "--model", "straight/LATEST/model"};
  const ProcessResult on_cpu = run_process(plus({program()}, eval), dir.path());
  REQUIRE(on_cpu.exit_code == 0);
  Json here = parse_json(on_device(dir.path(), plus(eval, {"--device", "cuda"})).out, "eval"),
       there = parse_json(on_cpu.out, "eval");
  CHECK(relative(here["val_loss"], there["val_loss"]) <= 1e-5);
  here.erase("val_loss");
  there.erase("val_loss");
  CHECK(here == there);
}
