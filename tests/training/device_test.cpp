#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "core/cuda/module.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ProcessResult nemocube_in_sources(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), NEMOCUBE_BINARY);
  return run_process(arguments, source_dir());
}

/// What is wrong with a whole model on CUDA.
std::string no_model_on_cuda() {
  return cuda::backend_missing().empty() ? "no CUDA kernels yet for attention, causal_conv1d, cross_entropy, embedding"
                                         : cuda::backend_missing();
}

}  // namespace

TEST_CASE("device: commands with a model refuse cuda before they read anything, and say why") {
  wait_politely();
  const std::vector<std::vector<std::string>> commands{
      {"train", "configs/squad_tiny.yaml"},
      {"train", "--check", "configs/squad_tiny.yaml"},
      {"eval", "configs/squad_tiny.yaml", "--model", "configs/nemotron_h_tiny"},
      {"forward", "--model", "/no/such/model", "--input", "/no/such/input", "--output", "/no/such/output"},
      {"generate", "--model", "/no/such/model", "--prompt", "x"},
  };
  for (std::vector<std::string> command : commands) {
    CAPTURE(command.front());
    command.insert(command.end(), {"--device", "cuda"});
    const ProcessResult run = nemocube_in_sources(command);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find("--device cuda: " + no_model_on_cuda()) != std::string::npos);
    command.back() = "gpu";
    CHECK(nemocube_in_sources(command).err.find("--device: want cpu, cuda or auto, got 'gpu'") !=
          std::string::npos);
  }
  const ProcessResult from_recipe =
      nemocube_in_sources({"train", "configs/squad_tiny.yaml", "--set", "device=cuda"});
  CHECK(from_recipe.err.find("configs/squad_tiny.yaml: device: cuda: " + no_model_on_cuda()) !=
        std::string::npos);
}

TEST_CASE("device: auto is the CPU for a model, and a message says so") {
  wait_politely();
  const ProcessResult run =
      nemocube_in_sources({"train", "--check", "configs/squad_tiny.yaml", "--device", "auto"});
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  CHECK(run.err.find("device auto: cpu, because of: " + no_model_on_cuda()) != std::string::npos);
  CHECK(run.out.find("device: auto") != std::string::npos);
}

TEST_CASE("device: bench op on cuda, or why there is none") {
  wait_politely();
  const ProcessResult run =
      nemocube_in_sources({"bench", "op", "--op", "relu2", "--small", "--repeats", "1", "--device", "cuda"});
  CAPTURE(run.err);
  if (cuda::unavailable().empty())
    CHECK(run.exit_code == 0);
  else
    CHECK(run.err.find("--device cuda: " + cuda::unavailable()) != std::string::npos);
  const ProcessResult unheard = nemocube_in_sources({"bench", "op", "--op", "linear", "--device", "cuda"});
  CHECK(unheard.exit_code == 2);
  CHECK(unheard.err.find(cuda::backend_missing().empty() ? "no CUDA kernels yet for linear"
                                                         : cuda::backend_missing()) != std::string::npos);
  const ProcessResult cpu =
      nemocube_in_sources({"bench", "op", "--op", "router", "--small", "--repeats", "1", "--device", "auto"});
  CHECK(cpu.exit_code == 0);
  CHECK(cpu.err.find("device auto: cpu, because of: ") != std::string::npos);
}

TEST_CASE("device: without --device no CUDA library is loaded") {
  // The loader of shared libraries lists the files that it opens.
  const ProcessResult run = run_process({"env", "GOMP_SPINCOUNT=2000", "LD_DEBUG=files", NEMOCUBE_BINARY,
                                         "bench", "op", "--op", "relu2", "--small", "--repeats", "1"});
  CHECK(run.exit_code == 0);
  CHECK(run.err.find("libstdc++") != std::string::npos);
  CHECK(run.err.find("nemocube_cuda.so") == std::string::npos);
  CHECK(run.err.find("libcudart") == std::string::npos);
}

// On the software GPU, also where the test itself runs on none.
TEST_CASE("device: operations on the software GPU move what they must, without bank conflicts and spills" *
          doctest::test_suite("cuda")) {
  const auto libraries = std::filesystem::path(NEMOCUBE_BINARY).parent_path() / "cuda_emulator";
  if (!cuda::backend_missing().empty() || !std::filesystem::exists(libraries / "libcudart.so.13")) {
    MESSAGE("bench op on the software GPU did not run: this build has no CUDA backend, or make emulator has not run");
    return;
  }
  wait_politely();
  ::setenv("CUDA_EMULATOR_LIBRARIES", libraries.c_str(), 1);
  const auto emulator = source_dir() / "tools" / "cuda_emulator" / "run";
  const TestDir dir;
  for (const char* dtype : {"f32", "bf16"}) {
    CAPTURE(dtype);
    const ProcessResult run =
        run_process({emulator.string(), "--counters", (dir / "counters.json").string(), NEMOCUBE_BINARY,
                     "bench", "op", "--device", "cuda", "--dtype", dtype, "--json"});
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
      CHECK(line.at("bank_conflicts").get<int>() == 0);
      CHECK(line.at("spill_bytes").get<int>() == 0);
      // Two operations one after the other must move more than one that does the work of both.
      if (line.at("variant").get<std::string>().starts_with("separate")) continue;
      CHECK(line.at("of_bytes").get<double>() <= 1.05);
      CHECK(line.at("of_bytes").get<double>() >= 0.99);  // else the counters have missed something
    }
    CHECK(cases == 8);
  }
}
