#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "core/cuda/module.h"
#include "core/kernel.h"
#include "tests/support/cuda_programs.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ProcessResult nemocube_in_sources(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program());
  return run_process(arguments, source_dir());
}

}  // namespace

TEST_CASE("device: commands with a model refuse cuda before they read anything, and say why") {
  if (cuda::unavailable().empty()) {
    MESSAGE("not tried: there is a CUDA device");
    return;
  }
  wait_politely();
  const std::vector<std::vector<std::string>> commands{
      {"train", "configs/squad_tiny.yaml"},
      {"train", "--check", "configs/squad_tiny.yaml"},
      {"eval", "configs/squad_tiny.yaml", "--model", "configs/nemotron_h_tiny"},
      {"forward", "--model", "/no/such/model", "--input", "/no/such/input", "--output", "/no/such/output"},
      {"generate", "--model", "/no/such/model", "--prompt", "x"},
      {"bench", "op", "--op", "linear", "--small"},
  };
  for (std::vector<std::string> command : commands) {
    CAPTURE(command.front());
    command.insert(command.end(), {"--device", "cuda"});
    const ProcessResult run = nemocube_in_sources(command);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find("--device cuda: " + cuda::unavailable()) != std::string::npos);
    command.back() = "gpu";
    CHECK(nemocube_in_sources(command).err.find("--device: want cpu, cuda or auto, got 'gpu'") !=
          std::string::npos);
  }
  const ProcessResult from_recipe =
      nemocube_in_sources({"train", "configs/squad_tiny.yaml", "--set", "device=cuda"});
  CHECK(from_recipe.err.find("configs/squad_tiny.yaml: device: cuda: " + cuda::unavailable()) !=
        std::string::npos);
}

TEST_CASE("device: auto is the CPU where there is no device, and a message says so") {
  if (cuda::unavailable().empty()) {
    MESSAGE("not tried: there is a CUDA device");
    return;
  }
  wait_politely();
  const std::string words = "device auto: cpu, because of: " + cuda::unavailable();
  const ProcessResult run =
      nemocube_in_sources({"train", "--check", "configs/squad_tiny.yaml", "--device", "auto"});
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  CHECK(run.err.find(words) != std::string::npos);
  CHECK(run.out.find("device: auto") != std::string::npos);
  const ProcessResult bench =
      nemocube_in_sources({"bench", "op", "--op", "router", "--small", "--repeats", "1", "--device", "auto"});
  CHECK(bench.exit_code == 0);
  CHECK(bench.err.find(words) != std::string::npos);
}

TEST_CASE("device: every operation has kernels for CUDA") {
  if (!cuda::backend_missing().empty()) {
    MESSAGE("not tried: ", cuda::backend_missing());
    return;
  }
  for (const std::string_view op : operations()) {
    CAPTURE(op);
    CHECK(runs_on_cuda(op));
  }
}

TEST_CASE("device: without --device no CUDA library is loaded") {
  // The loader of shared libraries lists the files that it opens.
  const ProcessResult run = run_process({"env", "GOMP_SPINCOUNT=2000", "LD_DEBUG=files", program(), "bench",
                                         "op", "--op", "relu2", "--small", "--repeats", "1"});
  CHECK(run.exit_code == 0);
  CHECK(run.err.find("libstdc++") != std::string::npos);
  CHECK(run.err.find("nemocube_cuda.so") == std::string::npos);
  CHECK(run.err.find("libcudart") == std::string::npos);
}

// On the software GPU, also where the test itself runs on none. Operations that are mostly products are left
// out: make kernel-report counts them.
TEST_CASE("device: operations on the software GPU move what they must, without bank conflicts and spills" *
          doctest::test_suite("cuda")) {
  if (!cuda::backend_missing().empty() ||
      !std::filesystem::exists(emulator_libraries() / "libcudart.so.13")) {
    MESSAGE(
        "bench op on the software GPU did not run: this build has no CUDA backend, or make emulator has not "
        "run");
    return;
  }
  const char* seed = std::getenv("CUDA_EMULATOR_SEED");
  if (seed && std::string_view(seed) != "1") {
    MESSAGE("bench op on the software GPU did not run: with counters every seed gives the same order");
    return;
  }
  wait_politely();
  ::setenv("CUDA_EMULATOR_LIBRARIES", emulator_libraries().c_str(), 1);
  const auto emulator = source_dir() / "tools" / "cuda_emulator" / "run";
  const TestDir dir;
  using Measured = std::pair<const char*, const char*>;
  const std::vector<Measured> measured{
      {"adamw", "f32"},         {"adamw", "bf16"},         {"causal_conv1d", "bf16"}, {"embedding", "bf16"},
      {"expert_scale", "bf16"}, {"gated_rmsnorm", "bf16"}, {"gelu", "bf16"},          {"global_norm", "bf16"},
      {"layernorm", "f32"},     {"layernorm", "bf16"},     {"permute", "bf16"},       {"relu2", "f32"},
      {"relu2", "bf16"},        {"rmsnorm", "f32"},        {"rmsnorm", "bf16"},       {"rope", "f32"},
      {"rope", "bf16"},         {"router", "bf16"},        {"row_gate", "bf16"},      {"scale_by", "f32"},
      {"scale_by", "bf16"},     {"scale_columns", "f32"},  {"scale_columns", "bf16"}, {"sgd", "bf16"}};
  for (const auto& [op, dtype] : measured) {
    CAPTURE(op);
    CAPTURE(dtype);
    const ProcessResult run =
        run_process({emulator.string(), "--counters", (dir / "counters.json").string(), program(), "bench",
                     "op", "--op", op, "--device", "cuda", "--dtype", dtype, "--json"});
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    std::istringstream lines(run.out);
    std::string text;
    std::getline(lines, text);  // the device
    int cases = 0;
    while (std::getline(lines, text)) {
      CAPTURE(text);
      const Json line = parse_json(text, "a line of bench op");
      ++cases;
      CHECK(line.at("ok").get<bool>());
      CHECK(line.at("launches").get<int>() > 0);
      const std::string variant = line.at("variant");
      // The order of permuted rows is counted by atomics of shared memory, where rows of one expert meet.
      if (variant != "order") CHECK(line.at("bank_conflicts").get<int>() == 0);
      CHECK(line.at("spill_bytes").get<int>() == 0);
      // Two operations one after the other must move more than one that does the work of both.
      if (variant.starts_with("separate")) continue;
      CHECK(line.at("of_bytes").get<double>() <= 1.05);
      CHECK(line.at("of_bytes").get<double>() >= 0.99);  // else the counters have missed something
    }
    CHECK(cases >= 1);
  }
}
