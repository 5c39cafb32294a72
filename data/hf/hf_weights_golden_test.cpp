#include <doctest/doctest.h>

#include <algorithm>

#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/json/test_dir.h"
#include "tests/support/compare.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

std::vector<NamedTensor> empty_model(const ModelConfig& config) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(config))
    tensors.push_back({.name = spec.name,
                       .value = Tensor::zeros(spec.shape, DType::f32, Device::cpu),
                       .keep_f32 = spec.keep_f32});
  return tensors;
}

std::vector<fs::path> golden_models() {
  std::vector<fs::path> dirs;
  const fs::path root = source_dir() / "tests/goldens";
  if (fs::exists(root))
    for (const auto& entry : fs::directory_iterator(root))
      if (fs::exists(entry.path() / "config.json")) dirs.push_back(entry.path());
  std::ranges::sort(dirs);
  if (dirs.empty()) MESSAGE("no golden models: case did not run");
  return dirs;
}

bool is_model_file(const std::string& name) { return name.starts_with("model") || name == "config.json"; }
}  // namespace

TEST_CASE("hf weights: each golden model is saved again byte for byte") {
  for (const fs::path& source : golden_models()) {
    CAPTURE(source.filename().string());
    const TestDir dir;
    const HfConfigFile config = read_hf_config_file(source);
    const std::vector<NamedTensor> model = empty_model(config.config);
    const WeightFiles files = load_hf_weights(source, model);
    save_hf_weights(dir / "out", model, files);
    int compared = 0;
    for (const std::string& name : names_in(source))
      if (is_model_file(name)) {
        CAPTURE(name);
        CHECK(slurp(dir / ("out/" + name)) == slurp(source / name));
        ++compared;
      }
    CHECK(compared >= 2);
    for (const std::string& name : names_in(dir / "out")) CHECK_MESSAGE(fs::exists(source / name), name);

    // The stored values of every tensor, read directly.
    const SafetensorsTensors stored = open_safetensors_model(source);
    const std::vector<NamedTensor> named = to_file_names(model, files);
    CHECK(named.size() == stored.size());
    for (const NamedTensor& t : named) CHECK_BITS(t.value.clone(), stored.at(t.name).value().to(DType::f32));
  }
}

TEST_CASE("hf weights: golden gradients have the names of the files") {
  for (const fs::path& source : golden_models()) {
    if (!fs::exists(source / "expected.safetensors")) continue;
    CAPTURE(source.filename().string());
    const std::vector<NamedTensor> model = empty_model(read_hf_config(source));
    const std::vector<NamedTensor> named = to_file_names(model, load_hf_weights(source, model));
    const SafetensorsFile expected(source / "expected.safetensors");
    std::size_t gradients = 0;
    for (const NamedTensor& t : named)
      if (const StoredTensor* grad = expected.find("grad." + t.name)) {
        CHECK(expected.tensor(*grad).shape() == t.value.shape());
        ++gradients;
      } else {
        const bool buffer = t.name.ends_with("e_score_correction_bias") || t.name.ends_with("layer_scalar");
        CHECK_MESSAGE(buffer, t.name);
      }
    const auto is_grad = [](const StoredTensor& t) { return t.name.starts_with("grad."); };
    CHECK(gradients == static_cast<std::size_t>(std::ranges::count_if(expected.tensors(), is_grad)));
  }
}
