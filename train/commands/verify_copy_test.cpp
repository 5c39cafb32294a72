#include "train/commands/verify_copy.h"

#include <doctest/doctest.h>

#include <limits>

#include "core/log.h"
#include "data/json/test_dir.h"
#include "data/peft/merge.h"
#include "data/peft/write_peft.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"
#include "train/commands/merged_weights.h"
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
          [factor](const std::string&, const TensorPart&, const Tensor& values) {
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

TEST_CASE("verify: an adapter that was left out of a merge is noticed, of all weights or of one") {
  set_log_level(LogLevel::error);
  const TestDir dir;
  for (const char* name : {"linear", "experts"}) {
    const auto golden = goldens / "peft" / name, base = dir / cat(name, "base"),
               adapter = dir / cat(name, "small");
    const LoadedModel made = make_model(golden / "config.json", DType::bf16, 7, Device::cpu);
    save_hf_weights(base, named_tensors(*made.model), made.files);
    // So small that the logits change by less than rounding to BF16 might.
    const PeftDirectory opened(golden, read_hf_config(base));
    LoraAdapters adapters = opened.adapters();
    for (auto& [module, lora] : adapters.modules) lora.alpha *= 0.1;
    std::vector<NamedTensor> tensors;
    for (const std::string& tensor : opened.tensor_names())
      tensors.push_back({tensor, opened.tensor(tensor)});
    write_peft_directory(adapter, tensors, adapters);
    const PeftDirectory small(adapter, read_hf_config(base));
    const WeightChange merge = merge_of(small);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(name);
      CAPTURE(dtype);
      const auto at = [&](const std::string& what) { return dir / cat(name, dtype, what); };
      copy_hf_model(base, at("all"), in(dtype), merge);
      CHECK(passes(base, adapter, at("all")));
      copy_hf_model(base, at("none"), in(dtype));
      CHECK_FALSE(passes(base, adapter, at("none")));
      for (const auto& [adapted, lora] : adapters.modules) {
        const std::string module = ModelNames().text(adapted);
        CAPTURE(module);
        const WeightChange others{[&](std::string_view weight) {
                                    return module_of_weight(weight) != module && merge.changes(weight);
                                  },
                                  merge.apply};
        const auto copy = at(module);
        copy_hf_model(base, copy, in(dtype), others);
        CHECK_FALSE(passes(base, adapter, copy));
        CHECK(message_of([&] {
                verify_copy(base, adapter, copy);
              }).find(cat(": 1 of ", adapters.modules.size(), " adapted weights are not those of ")) !=
              std::string::npos);
        std::filesystem::remove_all(copy);
      }
    }
  }
  set_log_level(LogLevel::info);
}

TEST_CASE(
    "verify: changes that the dtype of a merge cannot hold are told from an adapter that was left out") {
  const TestDir dir;
  const auto golden = goldens / "peft" / "linear", base = dir / "base", adapter = dir / "tiny";
  const LoadedModel made = make_model(golden / "config.json", DType::bf16, 7, Device::cpu);
  save_hf_weights(base, named_tensors(*made.model), made.files);
  const PeftDirectory opened(golden, read_hf_config(base));
  LoraAdapters adapters = opened.adapters();
  for (auto& [module, lora] : adapters.modules) lora.alpha *= 1e-9;
  std::vector<NamedTensor> tensors;
  for (const std::string& tensor : opened.tensor_names()) tensors.push_back({tensor, opened.tensor(tensor)});
  write_peft_directory(adapter, tensors, adapters);
  copy_hf_model(base, dir / "merged", in(DType::bf16),
                merge_of(PeftDirectory(adapter, read_hf_config(base))));
  const MergedWeights found = check_merged_weights(base, adapter, dir / "merged");
  CHECK(found.weights == std::ssize(adapters.modules));
  CHECK(found.unresolved.size() == adapters.modules.size());
  CHECK(found.largest_error <= 1);
  CHECK(found.largest_change > 0);
}
