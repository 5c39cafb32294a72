#include "train/commands/verify_copy.h"

#include <doctest/doctest.h>

#include <limits>

#include "core/log.h"
#include "data/json/test_dir.h"
#include "data/peft/merge.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"
#include "train/model_io/model_io.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
const std::filesystem::path goldens = source_dir() / "tests/goldens";

SaveOptions in(DType dtype) {
  SaveOptions options;
  options.dtype = dtype;
  return options;
}

/// Every weight of lm_head by `factor`.
WeightChange scaled_head(float factor) {
  return {[](std::string_view name) { return name == "lm_head.weight"; },
          [factor](const std::string&, std::int64_t, const Tensor& values) {
            for (std::int64_t i = 0; i < values.numel(); ++i) values.data<float>()[i] *= factor;
          }};
}

bool passes(const std::filesystem::path& source, const std::filesystem::path& adapter,
            const std::filesystem::path& copy) {
  const std::string message = message_of([&] { verify_copy(source, adapter, copy); });
  CAPTURE(message);
  const bool passed = message == "no error";
  if (!passed) CHECK(message.find("the copy was kept") != message.npos);
  return passed;
}
}  // namespace

TEST_CASE(
    "verify: a copy in any dtype has the logits of its source to the bit, and a changed one is noticed") {
  set_log_level(LogLevel::error);
  const TestDir dir;
  for (const char* name : {"all_four", "bf16_stored"}) {
    CAPTURE(name);
    const auto source = goldens / name;
    copy_hf_model(source, dir / cat(name, "same"));
    CHECK(passes(source, {}, dir / cat(name, "same")));
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      const auto copy = dir / cat(name, dtype);
      copy_hf_model(source, copy, in(dtype));
      CHECK(passes(source, {}, copy));
    }
    copy_hf_model(source, dir / cat(name, "changed"), {}, scaled_head(1.01F));
    CHECK_FALSE(passes(source, {}, dir / cat(name, "changed")));
    CHECK(std::filesystem::exists(dir / cat(name, "changed") / "model.safetensors") !=
          std::filesystem::exists(dir / cat(name, "changed") / "model.safetensors.index.json"));
    copy_hf_model(source, dir / cat(name, "broken"), {}, scaled_head(std::numeric_limits<float>::infinity()));
    CHECK_FALSE(passes(source, {}, dir / cat(name, "broken")));
  }
  set_log_level(LogLevel::info);
}

TEST_CASE("verify: a merged adapter is compared with the adapter, within the rounding of the weights") {
  set_log_level(LogLevel::error);
  const TestDir dir;
  for (const char* name : {"linear", "experts"}) {
    CAPTURE(name);
    const auto adapter = goldens / "peft" / name, base = dir / cat(name, "base");
    const LoadedModel made =
        make_model(adapter / "config.json", DType::f32, 7, Device::cpu);  // fresh weights
    save_hf_weights(base, named_tensors(*made.model), made.files);
    const PeftDirectory opened(adapter, read_hf_config(base));
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      CAPTURE(dtype);
      const auto merged = dir / cat(name, "merged", dtype);
      copy_hf_model(base, merged, in(dtype), merge_of(opened));
      CHECK(passes(base, adapter, merged));
      CHECK_FALSE(passes(base, {}, merged));
    }
    CHECK_FALSE(passes(base, adapter, base));  // not merged
  }
  set_log_level(LogLevel::info);
}
