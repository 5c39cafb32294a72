#include <doctest/doctest.h>

#include <algorithm>

#include "data/hf/hf_config.h"
#include "data/json/test_dir.h"
#include "data/peft/peft_directory.h"
#include "data/peft/write_peft.h"
#include "tests/support/compare.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

fs::path goldens() { return source_dir() / "tests/goldens/peft"; }

/// s B A in f64; A [r, in], B [out, r].
void add_product(std::vector<double>& sums, const Tensor& a, const Tensor& b, double scale) {
  const auto left = b.to_vector(), right = a.to_vector();
  const std::int64_t rank = a.dim(0), in = a.dim(1), out = b.dim(0);
  for (std::int64_t o = 0; o < out; ++o)
    for (std::int64_t i = 0; i < in; ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < rank; ++k)
        sum += left[static_cast<std::size_t>(o * rank + k)] * right[static_cast<std::size_t>(k * in + i)];
      sums.push_back(scale * sum);
    }
}

Tensor delta_of(const PeftDirectory& peft, const std::string& module, const Shape& shape) {
  const Tensor a = peft.tensor(module + ".lora_A.weight"), b = peft.tensor(module + ".lora_B.weight");
  const double scale = peft.adapters().modules.at(ModelNames().find(module).value()).scale();
  std::vector<double> sums;
  if (a.ndim() == 2) add_product(sums, a, b, scale);
  for (std::int64_t e = 0; a.ndim() == 3 && e < a.dim(0); ++e)
    add_product(sums, a.select(e), b.select(e), scale);
  return Tensor::from(sums, shape);
}

std::vector<NamedTensor> tensors_of(const PeftDirectory& peft) {
  std::vector<NamedTensor> tensors;
  for (const std::string& name : peft.tensor_names()) tensors.push_back({name, peft.tensor(name)});
  return tensors;
}
}  // namespace

TEST_CASE("peft: an adapter of PEFT adds to each weight what PEFT's merge adds") {
  std::size_t cases = 0;
  for (const auto& entry : fs::directory_iterator(goldens())) {
    CAPTURE(entry.path().filename().string());
    const PeftDirectory peft(entry.path(), read_hf_config(entry.path()));
    CHECK(peft.base_model_name_or_path() == "goldens/tiny");
    CHECK(peft.adapters().f32 == (entry.path().filename() != "bf16"));
    const SafetensorsFile expected(entry.path() / "expected.safetensors");
    CHECK(peft.adapters().modules.size() == expected.tensors().size());
    for (const StoredTensor& weight : expected.tensors()) {
      CAPTURE(weight.name);
      const std::string module =
          weight.name.ends_with(".weight") ? weight.name.substr(0, weight.name.size() - 7) : weight.name;
      REQUIRE(peft.adapters().modules.contains(ModelNames().find(module).value()));
      const Tensor want = expected.tensor(weight);
      CHECK_CLOSE(delta_of(peft, module, want.shape()), want, (Tol{1e-6, 1e-6}));
    }
    ++cases;
  }
  CHECK(cases == 12);
}

TEST_CASE("peft: what is written has the tensors of PEFT's own file, bit for bit") {
  for (const auto& entry : fs::directory_iterator(goldens())) {
    CAPTURE(entry.path().filename().string());
    const TestDir dir;
    const PeftDirectory peft(entry.path(), read_hf_config(entry.path()));
    PeftWriteOptions options;
    if (entry.path().string().ends_with("0_18")) options.experts = ExpertForm::stacked_peft_0_18;
    write_peft_directory(dir / "out", tensors_of(peft), peft.adapters(), options);
    const SafetensorsFile got(dir / "out/adapter_model.safetensors"),
        want(entry.path() / "adapter_model.safetensors");
    std::size_t compared = 0;
    for (const StoredTensor& tensor : want.tensors()) {
      if (tensor.name.ends_with("base_layer.weight")) continue;
      CAPTURE(tensor.name);
      REQUIRE(got.find(tensor.name));
      CHECK_BITS(got.tensor(tensor.name), want.tensor(tensor));
      ++compared;
    }
    CHECK(compared == got.tensors().size());
    CHECK(got.metadata() == want.metadata());
  }
}
