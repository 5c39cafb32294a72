#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "data/json/test_dir.h"
#include "data/safetensors/reader.h"
#include "tests/support/compare.h"
#include "tests/support/cuda_programs.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;
const fs::path goldens = source_dir() / "tests" / "goldens";

std::vector<fs::path> forward_cases() {
  std::vector<fs::path> cases;
  for (const auto& entry : fs::directory_iterator(goldens))
    if (fs::exists(entry.path() / "expected.safetensors")) cases.push_back(entry.path());
  std::ranges::sort(cases);
  return cases;
}

std::set<std::string> names(const SafetensorsFile& file) {
  std::set<std::string> all;
  for (const StoredTensor& t : file.tensors()) all.insert(t.name);
  return all;
}

double frobenius(const Tensor& t) {
  return relative_error(t, Tensor::zeros(t.shape(), t.dtype(), Device::cpu));
}

struct Tolerances {
  double logits = 0, loss = 0, gradients = 0;  // relative, in the Frobenius norm
};
// Rounding of f32 through the layers of these models.
constexpr Tolerances f32{1e-5, 1e-6, 1e-4};
// Rounding of bf16 in one block.
constexpr Tolerances of_bf16{0x1p-7, 0x1p-8, 0x1p-6};

/// Runs `forward --grads` with `options` on the model of `dir`; the result is in `output`.
void run_forward(const fs::path& dir, const std::vector<std::string>& program,
                 const std::vector<std::string>& options, const fs::path& output) {
  std::vector<std::string> command = program;
  command.insert(command.end(),
                 {"forward", "--model", dir.string(), "--input", (dir / "input.safetensors").string(),
                  "--output", output.string(), "--grads"});
  command.insert(command.end(), options.begin(), options.end());
  const ProcessResult run = run_process(command);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
}

/// Compares a run with what Hugging Face computed.
void check_golden(const fs::path& dir, const std::vector<std::string>& program,
                  const std::vector<std::string>& options, const Tolerances& tolerances,
                  const char* expected = "expected.safetensors") {
  CAPTURE(dir.filename().string());
  const TestDir scratch;
  run_forward(dir, program, options, scratch / "out.safetensors");
  const SafetensorsFile got(scratch / "out.safetensors");
  const SafetensorsFile want(dir / expected);
  const std::set<std::string> got_names = names(got), want_names = names(want);
  CHECK(got_names == want_names);
  CHECK(relative_error(got.tensor("logits"), want.tensor("logits")) <= tolerances.logits);
  CHECK(relative_error(got.tensor("loss"), want.tensor("loss")) <= tolerances.loss);
  double largest = 0;
  for (const std::string& name : want_names)
    if (name.starts_with("grad.")) largest = std::max(largest, frobenius(want.tensor(name)));
  for (const std::string& name : want_names) {
    if (!name.starts_with("grad.")) continue;
    CAPTURE(name);
    const Tensor g = got.tensor(name), w = want.tensor(name);
    // Gradients that cancel to nothing (the gate of a top-1 router) have no relative error to speak of.
    if (frobenius(w) < 1e-9 * largest)
      CHECK(frobenius(g) <= tolerances.gradients * 1e-2 * largest);
    else
      CHECK(relative_error(g, w) <= tolerances.gradients);
  }
}

/// Log-probabilities that `forward --logprobs` writes, against log_softmax of the logits that Hugging Face
/// computed in f64. Log-probabilities below -1 have a relative error of `bound` where it is `relative`.
void check_log_probabilities(const fs::path& dir, const std::vector<std::string>& program,
                             const std::vector<std::string>& options, double bound, bool relative) {
  CAPTURE(dir.filename().string());
  const TestDir scratch;
  std::vector<std::string> command = program;
  command.insert(command.end(),
                 {"forward", "--model", dir.string(), "--input", (dir / "input.safetensors").string(),
                  "--output", (scratch / "out").string(), "--logprobs"});
  command.insert(command.end(), options.begin(), options.end());
  const ProcessResult run = run_process(command);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const SafetensorsFile got(scratch / "out"), want(dir / "expected.safetensors");
  CHECK(names(got) == std::set<std::string>{"logprobs", "loss"});
  CHECK(relative_error(got.tensor("loss"), want.tensor("loss")) <= f32.loss);
  const Tensor labels = SafetensorsFile(dir / "input.safetensors").tensor("labels"),
               logits = want.tensor("logits").to(DType::f64), logprobs = got.tensor("logprobs");
  REQUIRE(logprobs.shape() == labels.shape());
  REQUIRE(logprobs.dtype() == DType::f32);
  const std::int64_t vocabulary = logits.cols();
  for (std::int64_t t = 0; t < labels.numel(); ++t) {
    const std::int64_t label = labels.data<std::int64_t>()[t];
    const double* row = logits.data<double>() + t * vocabulary;
    double most = row[0], sum = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) most = std::max(most, row[v]);
    for (std::int64_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v] - most);
    const double expected = label < 0 ? 0 : row[label] - most - std::log(sum);
    CAPTURE(t);
    CHECK(std::abs(static_cast<double>(logprobs.data<float>()[t]) - expected) <=
          bound * (relative ? std::max(1.0, std::abs(expected)) : 1));
  }
}

}  // namespace

TEST_CASE("forward: log-probabilities, against log_softmax of the golden logits of Hugging Face") {
  const auto cases = forward_cases();
  REQUIRE(cases.size() >= 20);
  for (const fs::path& dir : cases) {
    check_log_probabilities(dir, {program()}, {}, 1e-5, true);
    check_log_probabilities(dir, {program()}, {"--dtype", "f64"}, 2e-6, false);  // the file has f32
  }
}

TEST_CASE("forward: on cuda, log-probabilities against log_softmax of golden logits" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  for (const fs::path& dir : forward_cases())
    check_log_probabilities(dir, on_cuda({program()}), {"--device", "cuda"}, 1e-5, true);
}

TEST_CASE("forward: against golden logits, loss and gradients of Hugging Face") {
  const auto cases = forward_cases();
  REQUIRE(cases.size() >= 20);
  for (const fs::path& dir : cases) check_golden(dir, {program()}, {}, f32);
}

TEST_CASE("forward: adapters of models of other families, against logits of PEFT") {
  std::size_t cases = 0;
  for (const auto& entry : fs::directory_iterator(goldens / "adapters")) {
    const fs::path adapter = entry.path(), model = goldens / adapter.filename();
    CAPTURE(model.string());
    const TestDir scratch;
    const fs::path output = scratch / "out.safetensors";
    const ProcessResult run =
        run_process({program(), "forward", "--model", model.string(), "--adapter", adapter.string(),
                     "--input", (model / "input.safetensors").string(), "--output", output.string()});
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(relative_error(SafetensorsFile(output).tensor("logits"),
                         SafetensorsFile(adapter / "expected.safetensors").tensor("logits")) <= f32.logits);
    ++cases;
  }
  CHECK(cases >= 9);
}

TEST_CASE("forward: on cuda, against golden logits, loss and gradients of Hugging Face" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  for (const fs::path& dir : forward_cases())
    check_golden(dir, on_cuda({program()}), {"--device", "cuda"}, f32);
}

// In this model the digits of the gate that bf16 does not hold choose experts: rounding them moves the logits
// by half of their size.
TEST_CASE("forward: a bf16 model keeps its router in f32, as Hugging Face does") {
  check_golden(goldens / "f32_gate", {program()}, {}, of_bf16, "expected_bf16.safetensors");
}

TEST_CASE("forward: on cuda, a bf16 model keeps its router in f32, as Hugging Face does" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  check_golden(goldens / "f32_gate", on_cuda({program()}), {"--device", "cuda"}, of_bf16,
               "expected_bf16.safetensors");
}

// Both devices round to bf16 at the same places, up to second operands of products on tensor cores (scores,
// states), so their errors against Hugging Face's f64 are of one size. Routers are left out of the small
// selection: where two experts are nearly equal, rounding decides, and one device may choose another expert
// than f64 does.
TEST_CASE("forward: on cuda in bf16, errors against Hugging Face are those of the CPU in bf16" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  const std::vector<std::string> in_bf16{"--dtype", "bf16"},
      bf16_on_cuda{"--dtype", "bf16", "--device", "cuda"};
  for (const char* name : {"mamba_only", "attention_only", "wide_attention", "many_chunks", "biases",
                           "heads_of_64", "heads_of_80_bf16"}) {
    CAPTURE(name);
    const fs::path dir = goldens / name;
    const TestDir scratch;
    run_forward(dir, {program()}, in_bf16, scratch / "cpu.safetensors");
    run_forward(dir, on_cuda({program()}), bf16_on_cuda, scratch / "cuda.safetensors");
    const SafetensorsFile cpu(scratch / "cpu.safetensors"), cuda(scratch / "cuda.safetensors"),
        want(dir / "expected.safetensors");
    for (const std::string& tensor : names(want)) {
      CAPTURE(tensor);
      const double of_cpu = relative_error(cpu.tensor(tensor), want.tensor(tensor)),
                   of_cuda = relative_error(cuda.tensor(tensor), want.tensor(tensor));
      CHECK(of_cuda <= 1.5 * of_cpu + 0x1p-9);
    }
  }
}
