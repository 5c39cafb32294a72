#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/rng.h"
#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/hf/quantization_config.h"
#include "data/json/json.h"
#include "data/json/test_dir.h"
#include "data/safetensors/test_quantized.h"
#include "model/test_models.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

StoredBlob blob_of(const std::string& name, const Tensor& value) {
  const Tensor whole = value.clone();
  const std::span<const std::byte> bytes(whole.host_bytes(), static_cast<std::size_t>(whole.bytes()));
  return {name,
          std::string(stored_name(value.dtype())),
          {value.shape().dims().begin(), value.shape().dims().end()},
          {bytes.begin(), bytes.end()}};
}

StoredBlob number(const std::string& name, float value) {
  return blob_of(name, Tensor::from<float>({value}, {}));
}

/// Experts in NVFP4, other projections in FP8, as in a MIXED_PRECISION export; `value` becomes what they
/// mean.
void add_quantized(std::vector<StoredBlob>& blobs, const NamedTensor& tensor) {
  const std::int64_t rows = tensor.value.dim(0), columns = tensor.value.dim(1);
  const RandomStream draw(5, tensor.name);
  auto* to = tensor.value.data<float>();
  const auto code = [&](std::int64_t i) {
    return static_cast<std::uint8_t>(draw.bits(static_cast<std::uint64_t>(i)) % 120);
  };
  std::vector<std::byte> bytes;
  if (tensor.name.find(".experts.") == std::string::npos) {
    const float scale = 0.0015F;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      bytes.push_back(static_cast<std::byte>(code(i)));
      const int c = code(i), exponent = c >> 3, fraction = c & 7;
      const double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
      to[i] = static_cast<float>(size) * scale;
    }
    blobs.push_back({tensor.name, "F8_E4M3", {rows, columns}, bytes});
    // Some as transformers writes them.
    const bool other = tensor.name.find("o_proj") != std::string::npos;
    blobs.push_back(number(tensor.name + (other ? "_scale_inv" : "_scale"), scale));
    blobs.push_back(number(
        tensor.name.substr(0, tensor.name.size() - 6) + (other ? "activation_scale" : "input_scale"), 3));
    return;
  }
  constexpr float nibbles[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const std::int64_t blocks = (columns + 15) / 16;
  const float scale_2 = 0.25F;
  // Codes 0x38 and 0x40 are 1 and 2.
  const auto block_code = [&](std::int64_t b) { return b % 2 == 0 ? 0x38 : 0x40; };
  for (std::int64_t i = 0; i < rows * columns; i += 2)
    bytes.push_back(static_cast<std::byte>((code(i) & 15) | (code(i + 1) & 15) << 4));
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const int c = code(i) & 15;
    const std::int64_t block = i / columns * blocks + i % columns / 16;
    const float scale = (block % 2 == 0 ? 1.0F : 2.0F) * scale_2;
    to[i] = (c < 8 ? 1.0F : -1.0F) * nibbles[c & 7] * scale;
  }
  blobs.push_back({tensor.name, "U8", {rows, columns / 2}, bytes});
  std::vector<std::byte> scales;
  for (std::int64_t b = 0; b < rows * blocks; ++b) scales.push_back(static_cast<std::byte>(block_code(b)));
  blobs.push_back({tensor.name + "_scale", "F8_E4M3", {rows, blocks}, scales});
  blobs.push_back(number(tensor.name + "_scale_2", scale_2));
}

ModelConfig small() {
  ModelConfig config = tiny_config("ME*-");
  config.moe.intermediate_size = 18;  // NVFP4 codes are pairs of columns
  config.dtype = DType::bf16;
  return config;
}

std::vector<NamedTensor> empty_model(const ModelConfig& config, DType dtype) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(config))
    tensors.push_back({.name = spec.name,
                       .value = Tensor::zeros(spec.shape, spec.keep_f32 ? DType::f32 : dtype, Device::cpu),
                       .keep_f32 = spec.keep_f32});
  return tensors;
}

bool is_projection(const std::string& name) { return name.ends_with("_proj.weight"); }

/// Writes a directory whose projections are quantized; returns the values of the model in f32. Names begin
/// with `prefix`.
std::vector<NamedTensor> write_quantized(const fs::path& dir, const Json& more_config,
                                         const std::string& prefix = "", std::vector<StoredBlob> blobs = {}) {
  const ModelConfig config = small();
  std::vector<NamedTensor> model = empty_model(config, DType::f32);
  for (const NamedTensor& t : model) fill_normal(t.value, RandomStream(3, t.name), 0, 1);
  const WeightFiles files = default_weight_files(config);
  std::vector<StoredBlob> own;
  for (const NamedTensor& t : to_file_names(model, files))
    if (is_projection(t.name)) {
      add_quantized(own, t);
    } else {
      if (!t.keep_f32) t.value.copy_from(t.value.to(DType::bf16));  // the model's are rounded as well
      own.push_back(blob_of(t.name, t.keep_f32 ? t.value : t.value.to(DType::bf16)));
    }
  own.push_back(number("backbone.layers.2.mixer.k_proj.k_scale", 1));
  for (StoredBlob& blob : own) blob.name = prefix + blob.name, blobs.push_back(blob);
  fs::create_directories(dir);
  write_blobs(dir / single_file_name, blobs);
  Json document = parse_json(files.other_files.at("config.json"), "config.json");
  if (!prefix.empty()) {
    Json whole{{"model_type", "NemotronH_Nano_Omni_Reasoning_V3"}, {"torch_dtype", "bfloat16"}};
    whole["llm_config"] = document, whole["vision_config"] = {{"depth", 2}};
    document = whole;
  }
  document.update(more_config);
  spit(dir / "config.json", dump_json(document));
  return model;
}

void check_same(const std::vector<NamedTensor>& got, const std::vector<NamedTensor>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(want[i].name);
    CHECK_BITS(got[i].value, want[i].value.to(got[i].value.dtype()));
  }
}

Json mixed() {
  return {{"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}}}};
}
}  // namespace

TEST_CASE("quantized weights: a model is read as what its codes mean, and saved as plain bf16 weights") {
  const TestDir dir;
  const std::vector<NamedTensor> want = write_quantized(dir / "q", mixed());
  spit(dir / "q/hf_quant_config.json",
       R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "MIXED_PRECISION",
           "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4", "group_size": 16}}}})");
  CHECK(HfWeights(dir / "q").quantized().value_or("").find("_proj.weight'") != std::string::npos);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<NamedTensor> model = empty_model(small(), dtype);
    const WeightFiles files = load_hf_weights(dir / "q", model);
    check_same(model, want);
    const std::string saved = cat("saved", static_cast<int>(dtype));
    save_hf_weights(dir / saved, model, files);
    CHECK(names_in(dir / saved) == std::vector<std::string>{"config.json", "model.safetensors"});
    CHECK_FALSE(HfWeights(dir / saved).quantized());
    CHECK(slurp(dir / (saved + "/config.json")).find("quantization_config") == std::string::npos);
    const SafetensorsFile file(dir / (saved + "/model.safetensors"));
    CHECK(file.at("backbone.layers.1.mixer.experts.1.up_proj.weight").dtype == "BF16");
    CHECK(file.at("backbone.layers.0.mixer.in_proj.weight").dtype == "BF16");
    CHECK(file.find("backbone.layers.0.mixer.in_proj.weight_scale") == nullptr);
    CHECK(file.find("backbone.layers.2.mixer.k_proj.k_scale") == nullptr);
    const std::vector<NamedTensor> again = empty_model(read_hf_config(dir / saved), DType::bf16);
    load_hf_weights(dir / saved, again);
    check_same(again, want);
  }
  copy_hf_model(dir / "q", dir / "copy");
  CHECK(files_below(dir / "copy") == files_below(dir / cat("saved", static_cast<int>(DType::bf16))));
  SaveOptions wide;
  wide.dtype = DType::f32;
  copy_hf_model(dir / "q", dir / "wide", wide);
  const std::vector<NamedTensor> exact = empty_model(small(), DType::f32);
  load_hf_weights(dir / "wide", exact);
  check_same(exact, want);
}

TEST_CASE("quantized weights: what is missing, left over or declared otherwise is named") {
  const TestDir dir;
  write_quantized(dir / "q", Json::object());
  const std::vector<NamedTensor> model = empty_model(small(), DType::f32);
  CHECK_NOTHROW(load_hf_weights(dir / "q", model));  // without a word in config.json
  const auto message_with = [&](const Json& config) {
    write_quantized(dir / "q", config);
    return message_of([&] { load_hf_weights(dir / "q", model); });
  };
  const auto declared = [](const char* algorithm) {
    return Json{{"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", algorithm}}}};
  };
  CHECK(
      message_with(declared("FP8")).find("config.json: 'quantization_config' names no NVFP4 weights, but") !=
      std::string::npos);
  CHECK(message_with(declared("NVFP4")).find("names no FP8 weights, but") != std::string::npos);
  CHECK(message_with(declared("NVFP4_AWQ"))
            .find("quant_algo \"NVFP4_AWQ\"): the weights are quantized in a way") != std::string::npos);
  const StoredBlob orphan = number("backbone.layers.0.mixer.conv1d.weight_scale", 1);
  write_quantized(dir / "q", mixed(), "", {orphan});
  CHECK(message_of([&] { load_hf_weights(dir / "q", model); }).find("1 unexpected: " + orphan.name) !=
        std::string::npos);
  StoredBlob bare{"backbone.embeddings.weight", "F8_E4M3", {2}, std::vector<std::byte>(2)};
  fs::create_directories(dir / "bare");
  write_blobs(dir / "bare/model.safetensors", {bare});
  CHECK(message_of([&] {
          load_hf_weights(dir / "bare", model);
        }).find("is F8_E4M3 [2], want floating [23, 12] or backbone.embeddings.weight_scale beside it") !=
        std::string::npos);
}

TEST_CASE("quantized weights: declarations of other schemes are refused by name") {
  const auto read = [](const std::string& section) {
    const Json document = parse_json(cat("{\"quantization_config\": ", section, "}"), "config.json");
    return declared_quantization(JsonView(document, "config.json"));
  };
  for (
      const char* fp8 :
      {R"({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"})",
       R"({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"})",
       R"({"quant_method": "fp8", "weight_block_size": null, "activation_scheme": "static"})",
       R"({"quant_method": "modelopt", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}})"}) {
    CHECK(read(fp8)->fp8);
    CHECK_FALSE(read(fp8)->nvfp4);
  }
  CHECK(read(R"({"quant_algo": "W4A16_NVFP4"})")->nvfp4);
  CHECK_FALSE(read("{}"));
  for (const auto& [section, part] : std::vector<std::pair<const char*, const char*>>{
           {R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})",
            "(quant_method \"compressed-tensors\", format \"nvfp4-pack-quantized\"): the weights are "
            "quantized"},
           {R"({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"})",
            "quant_algo \"W4A16_AWQ\"): the weights"},
           {R"({"quant_method": "modelopt", "quant_algo": "INT8_SQ"})", "INT8_SQ"},
           {R"({"quant_method": "bitsandbytes"})", "bitsandbytes"},
           {R"({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"x": {"quant_algo": "W4A8_AWQ"}}})",
            "'quantization_config.quantized_layers.x.quant_algo' \"W4A8_AWQ\""},
           {R"({"quant_method": "fp8", "weight_block_size": [64, 64]})",
            "'quantization_config.weight_block_size': want [128, 128], got a list of 2"},
           {R"({"config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}})",
            "config_groups.g.weights"}}) {
    const std::string message = message_of([&, s = section] { read(s); });
    CAPTURE(message);
    CHECK(message.find(part) != message.npos);
  }
}

TEST_CASE("quantized weights: the language part of a model of several parts") {
  const TestDir dir;
  const StoredBlob vision = number("vision_model.radio_model.input_conditioner.norm_mean", 0.5),
                   projector = number("mlp1.0.weight", 2),
                   bias = number("vision_model.blocks.0.attn.v_bias", 3),  // no scale of a cache
      packed = number("vision_model.blocks.0.qweight", 4);
  StoredBlob quantized{
      "sound_projection.linear1.weight", "F8_E4M3", {1, 2}, {std::byte{0x38}, std::byte{0x40}}};
  const StoredBlob scale = number(quantized.name + "_scale", 0.5);
  const std::vector<NamedTensor> want = write_quantized(dir / "omni", mixed(), "language_model.",
                                                        {vision, projector, bias, packed, quantized, scale});
  const ModelConfig config = read_hf_config(dir / "omni");
  CHECK(config.blocks == small().blocks);
  CHECK(config.dtype == DType::bf16);
  const std::vector<NamedTensor> model = empty_model(config, DType::bf16);
  const WeightFiles files = load_hf_weights(dir / "omni", model);
  check_same(model, want);
  save_hf_weights(dir / "saved", model, files);
  copy_hf_model(dir / "omni", dir / "copy");
  CHECK(files_below(dir / "copy") == files_below(dir / "saved"));
  const SafetensorsFile saved(dir / "saved/model.safetensors");
  CHECK(saved.tensor(vision.name).item<float>() == 0.5F);
  CHECK(saved.tensor(projector.name).item<float>() == 2);
  CHECK(saved.tensor(bias.name).item<float>() == 3);
  CHECK(saved.tensor(packed.name).item<float>() == 4);
  CHECK_BITS(saved.tensor(quantized.name), Tensor::from<float>({0.5, 1}, {1, 2}).to(DType::bf16));
  CHECK(saved.find("language_model.lm_head.weight") != nullptr);
  const std::vector<NamedTensor> again = empty_model(read_hf_config(dir / "saved"), DType::bf16);
  load_hf_weights(dir / "saved", again);
  check_same(again, want);
  SaveOptions wide;
  wide.dtype = DType::f32;
  copy_hf_model(dir / "omni", dir / "wide", wide);
  CHECK(read_hf_config(dir / "wide").dtype == DType::f32);
  const Json document = read_json_file(dir / "wide/config.json");
  CHECK(document.at("torch_dtype") == "float32");
  CHECK(document.at("llm_config").at("torch_dtype") == "float32");
  CHECK(document.at("vision_config").at("depth") == 2);
  CHECK_FALSE(document.contains("quantization_config"));
}
