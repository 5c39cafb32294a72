#include <doctest/doctest.h>

#include <filesystem>

#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/safetensors/reader.h"
#include "model/test_models.h"
#include "tests/support/paths.h"
#include "train/model_io/model_io.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const std::filesystem::path goldens = source_dir() / "tests" / "goldens" / "mtp";

void check_mtp_golden(const char* name, bool repeated) {
  CAPTURE(name);
  const std::filesystem::path dir = goldens / name;
  Finetuning finetuning;
  finetuning.choices.mtp = {2, repeated, 0.3};
  LoadedModel loaded = load_model(dir, DType::f64, Device::cpu, finetuning);
  Stack& model = *loaded.model;
  CHECK(loaded.files.carried.empty());
  const SafetensorsFile input(dir / "input.safetensors"), want(dir / "expected.safetensors");
  std::vector<std::int64_t> offsets;
  for (const double offset : input.tensor("offsets").to_vector())
    offsets.push_back(static_cast<std::int64_t>(offset));
  const TestBatch batch{input.tensor("input_ids"), input.tensor("labels"), Sequences(offsets)};
  const auto count = static_cast<double>(Labels(batch.labels).count());
  const std::vector<double> losses = mtp_losses(model, batch, 1 / count);
  // The files have f32.
  CHECK(losses[0] / count == doctest::Approx(want.tensor("loss").to_vector()[0]).epsilon(2e-7));
  for (std::size_t k = 1; k < losses.size(); ++k)
    CHECK(losses[k] / count ==
          doctest::Approx(want.tensor(cat("mtp_loss.", k)).to_vector()[0]).epsilon(2e-7));
  std::vector<NamedTensor> gradients;
  for (const Parameter& p : model.parameters().all())
    if (p.node) gradients.push_back({p.name, p.gradient()});
  std::int64_t compared = 0;
  for (const NamedTensor& gradient : to_file_names(gradients, loaded.files)) {
    CAPTURE(gradient.name);
    CHECK(relative_error(gradient.value, want.tensor("grad." + gradient.name)) < 1e-6);
    ++compared;
  }
  CHECK(compared + 3 == std::ssize(want.tensors()));
}

}  // namespace

TEST_CASE("mtp: losses and gradients of two depths against the reference") { check_mtp_golden("two", false); }

TEST_CASE("mtp: losses and gradients of a repeated layer against the reference") {
  check_mtp_golden("repeated", true);
}
