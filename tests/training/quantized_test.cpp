#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "data/safetensors/low_precision.h"
#include "data/safetensors/reader.h"
#include "data/safetensors/test_quantized.h"
#include "tests/support/compare.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

ProcessResult run_in(const fs::path& dir, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program());
  return run_process(arguments, dir);
}

/// The nearest of all finite codes.
std::byte nearest_e4m3(float value) {
  std::size_t best = 0;
  for (std::size_t code = 0; code < 256; ++code)
    if (std::abs(e4m3_values[code] - value) < std::abs(e4m3_values[best] - value)) best = code;
  return static_cast<std::byte>(best);
}

StoredBlob stored(const SafetensorsFile& file, const StoredTensor& t) {
  StoredBlob blob{t.name, t.dtype, t.shape, std::vector<std::byte>(static_cast<std::size_t>(t.bytes()))};
  file.read_bytes(t, 0, blob.bytes);
  return blob;
}

/// A copy of a model directory whose experts and Mamba projections are FP8 with a scale for each tensor.
void quantize(const fs::path& from, const fs::path& to) {
  const SafetensorsFile file(from / "model.safetensors");
  std::vector<StoredBlob> blobs;
  for (const StoredTensor& t : file.tensors()) {
    const bool chosen = t.name.find(".experts.") != t.name.npos || t.name.find("in_proj") != t.name.npos;
    if (!chosen) {
      blobs.push_back(stored(file, t));
      continue;
    }
    const float scale = 0.001F;
    const Tensor values = file.tensor(t).to(DType::f32);
    StoredBlob codes{t.name, "F8_E4M3", t.shape, {}};
    for (std::int64_t i = 0; i < values.numel(); ++i)
      codes.bytes.push_back(nearest_e4m3(values.data<float>()[i] / scale));
    blobs.push_back(codes);
    StoredBlob one{t.name + "_scale", "F32", {}, std::vector<std::byte>(sizeof scale)};
    std::memcpy(one.bytes.data(), &scale, sizeof scale);
    blobs.push_back(one);
  }
  fs::create_directories(to);
  write_blobs(to / "model.safetensors", blobs);
  Json config = read_json_file(from / "config.json");
  config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}};
  config["torch_dtype"] = "bfloat16";
  spit(to / "config.json", dump_json(config));
  for (const std::string& name : names_in(from))
    if (name.starts_with("tokenizer")) fs::copy_file(from / name, to / name);
}

std::vector<std::string> from_fp8(std::vector<std::string> more) {
  more.insert(more.begin(), {"model._target_=nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
                             "model.config=null", "model.pretrained_model_name_or_path=fp8",
                             "model.torch_dtype=auto", "step_scheduler.max_steps=2", "lr_scheduler=null"});
  return more;
}
}  // namespace

TEST_CASE("quantized models: every command reads them, and what is saved is plain") {
  const RunDir dir;
  REQUIRE(dir.train({"step_scheduler.max_steps=2", "lr_scheduler=null"}).exit_code == 0);
  quantize(dir / "straight/LATEST/model", dir / "fp8");

  const ProcessResult converted = run_in(dir.path(), {"convert", "fp8", "plain", "--verify"});
  CAPTURE(converted.err);
  REQUIRE(converted.exit_code == 0);
  CHECK((converted.out + converted.err).find("the largest difference is 0") != std::string::npos);
  CHECK_FALSE(read_json_file(dir / "plain/config.json").contains("quantization_config"));
  const SafetensorsFile plain(dir / "plain/model.safetensors"), codes(dir / "fp8/model.safetensors");
  const std::string name = "backbone.layers.1.mixer.experts.5.down_proj.weight";
  CHECK(plain.at(name).dtype == "BF16");
  CHECK(codes.at(name).dtype == "F8_E4M3");
  CHECK(plain.find(name + "_scale") == nullptr);
  CHECK(run_in(dir.path(), {"convert", "fp8", "wide", "--dtype", "f32", "--verify"}).exit_code == 0);
  CHECK(SafetensorsFile(dir / "wide/model.safetensors").at(name).dtype == "F32");

  // Whatever dtype config.json names, the copy has rounded what was quantized.
  fs::copy(dir / "fp8", dir / "unsaid");
  Json config = read_json_file(dir / "unsaid/config.json");
  config.erase("torch_dtype");
  config.erase("dtype");
  spit(dir / "unsaid/config.json", dump_json(config));
  const ProcessResult unsaid = run_in(dir.path(), {"convert", "unsaid", "of_unsaid", "--verify"});
  CAPTURE(unsaid.err);
  CHECK(unsaid.exit_code == 0);

  CHECK(run_in(dir.path(), {"inspect", "--model", "fp8"}).exit_code == 0);
  const auto words = [&](const char* model) {
    const ProcessResult said =
        run_in(dir.path(), {"generate", "--model", model, "--tokenizer", "samples/tokenizer", "--prompt",
                            "the owl", "--max-new-tokens", "8"});
    CHECK(said.exit_code == 0);
    return said.out;
  };
  CHECK(words("fp8") == words("plain"));

  const ProcessResult trained = dir.train(from_fp8({"checkpoint.checkpoint_dir=again"}));
  CAPTURE(trained.err);
  REQUIRE(trained.exit_code == 0);
  CHECK_FALSE(read_json_file(dir / "again/LATEST/model/config.json").contains("quantization_config"));
  CHECK(SafetensorsFile(dir / "again/LATEST/model/model.safetensors").at(name).dtype == "BF16");

  const ProcessResult adapted =
      dir.train(from_fp8({"checkpoint.checkpoint_dir=adapted", "model.moe.expert_bias_update_rate=0",
                          "peft.target_modules=[\"*.q_proj\", \"*.mixer.experts\"]",
                          "checkpoint.dequantize_base_checkpoint=true"}));
  CAPTURE(adapted.err);
  REQUIRE(adapted.exit_code == 0);
  const ProcessResult merged =
      run_in(dir.path(), {"convert", "fp8", "merged", "--adapter", "adapted", "--merge", "--verify"});
  CAPTURE(merged.err);
  CHECK(merged.exit_code == 0);

  const ProcessResult refused = dir.train(from_fp8({"checkpoint.dequantize_base_checkpoint=false"}));
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find(
            "checkpoint.dequantize_base_checkpoint is false, but the model has quantized weights (fp8/") !=
        std::string::npos);
}
