#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "data/json/test_dir.h"
#include "data/safetensors/reader.h"
#include "tests/support/compare.h"
#include "tests/support/process.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;
const fs::path goldens = fs::path(NEMOCUBE_SOURCE_DIR) / "tests" / "goldens";

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

}  // namespace

TEST_CASE("forward: against golden logits, loss and gradients of Hugging Face") {
  const auto cases = forward_cases();
  REQUIRE(cases.size() >= 20);
  for (const fs::path& dir : cases) {
    CAPTURE(dir.filename().string());
    const TestDir scratch;
    const std::string output = (scratch / "out.safetensors").string();
    const ProcessResult run =
        run_process({NEMOCUBE_BINARY, "forward", "--model", dir.string(), "--input",
                     (dir / "input.safetensors").string(), "--output", output, "--grads"});
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const SafetensorsFile got(output);
    const SafetensorsFile want(dir / "expected.safetensors");
    const std::set<std::string> got_names = names(got), want_names = names(want);
    CHECK(got_names == want_names);
    CHECK(relative_error(got.tensor("logits"), want.tensor("logits")) <= 1e-5);
    CHECK(relative_error(got.tensor("loss"), want.tensor("loss")) <= 1e-6);
    double largest = 0;
    for (const std::string& name : want_names)
      if (name.starts_with("grad.")) largest = std::max(largest, frobenius(want.tensor(name)));
    for (const std::string& name : want_names) {
      if (!name.starts_with("grad.")) continue;
      CAPTURE(name);
      const Tensor g = got.tensor(name), w = want.tensor(name);
      // Gradients that cancel to nothing (the gate of a top-1 router) have no relative error to speak of.
      if (frobenius(w) < 1e-9 * largest)
        CHECK(frobenius(g) <= 1e-6 * largest);
      else
        CHECK(relative_error(g, w) <= 1e-4);
    }
  }
}
