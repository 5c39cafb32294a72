#include "data/hf/families/llama/llama.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/json/test_dir.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/mlp/mlp_block.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

const Json small = {{"model_type", "llama"},  {"hidden_size", 16},        {"intermediate_size", 24},
                    {"num_hidden_layers", 3}, {"num_attention_heads", 4}, {"vocab_size", 40}};

ModelConfig parse(Json changes = Json::object()) {
  Json config = small;
  config.update(changes);
  return parse_hf_config(JsonView(config, "config.json"));
}
std::string fault(const Json& changes) {
  return message_of([&] { (void)parse(changes); });
}

}  // namespace

TEST_CASE(
    "llama: a layer is an attention block and a gated MLP block, with the defaults of Hugging Face's class") {
  const ModelConfig c = parse();
  CHECK(c.blocks == std::vector<BlockKind>{attention_block, mlp_block, attention_block, mlp_block,
                                           attention_block, mlp_block});
  CHECK(c.names.layers(c.num_layers()) == 3);
  CHECK(c.attention.num_key_value_heads == 4);
  CHECK(c.attention.head_dim == 4);
  CHECK(c.attention.rope == RopeConfig{.type = RopeType::standard});
  CHECK(c.mlp.gate == GateActivation::silu);
  CHECK(c.layer_norm_epsilon == 1e-6);
  CHECK_FALSE(c.tie_word_embeddings);
  CHECK_FALSE(c.attention.qkv_bias);
  CHECK_FALSE(c.pad_token_id);
  CHECK(c.eos_token_id == std::vector<std::int64_t>{2});
  const ModelConfig none =
      parse_hf_config(JsonView(Json{{"architectures", {"LlamaForCausalLM"}}}, "config.json"));
  CHECK(none.num_layers() == 64);
  CHECK(none.hidden_size == 4096);
  CHECK(none.mlp.intermediate_size == 11008);
  CHECK(none.attention.head_dim == 128);
  CHECK(none.vocab_size == 32000);
}

TEST_CASE("llama: biases, heads of another width and a tied head") {
  const ModelConfig c = parse({{"attention_bias", true},
                               {"mlp_bias", true},
                               {"head_dim", 8},
                               {"num_key_value_heads", 2},
                               {"tie_word_embeddings", true}});
  CHECK(c.attention.qkv_bias);
  CHECK(c.attention.output_bias);
  CHECK(c.mlp.bias);
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(c))
    if (spec.id.block_of_model().value_or(0) < 2) names.push_back(cat(spec.name, ' ', spec.shape));
  CHECK(names ==
        std::vector<std::string>{
            "model.embed_tokens.weight [40, 16]", "model.layers.0.input_layernorm.weight [16]",
            "model.layers.0.self_attn.q_proj.weight [32, 16]", "model.layers.0.self_attn.q_proj.bias [32]",
            "model.layers.0.self_attn.k_proj.weight [16, 16]", "model.layers.0.self_attn.k_proj.bias [16]",
            "model.layers.0.self_attn.v_proj.weight [16, 16]", "model.layers.0.self_attn.v_proj.bias [16]",
            "model.layers.0.self_attn.o_proj.weight [16, 32]", "model.layers.0.self_attn.o_proj.bias [16]",
            "model.layers.0.post_attention_layernorm.weight [16]",
            "model.layers.0.mlp.gate_proj.weight [24, 16]", "model.layers.0.mlp.gate_proj.bias [24]",
            "model.layers.0.mlp.up_proj.weight [24, 16]", "model.layers.0.mlp.up_proj.bias [24]",
            "model.layers.0.mlp.down_proj.weight [16, 24]", "model.layers.0.mlp.down_proj.bias [16]",
            "model.norm.weight [16]"});
}

TEST_CASE("llama: config.json that cannot be meant") {
  CHECK(fault({{"hidden_act", "gelu"}}) == "config.json: 'hidden_act': want \"silu\", got \"gelu\"");
  CHECK(fault({{"hidden_size", 18}}).find("'head_dim' is missing, and hidden_size 18 is no multiple") !=
        std::string::npos);
  CHECK(fault({{"num_hidden_layers", 0}}).find("'num_hidden_layers': want 1 to") != std::string::npos);
  CHECK(fault({{"head_dim", 5}}).find("head_dim: want an even number") != std::string::npos);
  CHECK(fault({{"num_key_value_heads", 3}}).find("num_key_value_heads") != std::string::npos);
  CHECK(fault({{"rms_norm_eps", 0}}) == "config.json: 'rms_norm_eps': want a number above 0, got 0");
  for (const char* size : {"num_key_value_heads", "head_dim"})
    CHECK(fault({{size, 0}}) == cat("config.json: ", size, ": want at least 1, got 0"));
}

TEST_CASE("llama: what is written is read as the same") {
  for (const Json& changes :
       {Json::object(), Json{{"attention_bias", true}, {"head_dim", 8}, {"tie_word_embeddings", true}},
        Json{{"rope_theta", 5e5},
             {"rope_scaling",
              {{"rope_type", "llama3"},
               {"factor", 8},
               {"low_freq_factor", 1},
               {"high_freq_factor", 4},
               {"original_max_position_embeddings", 8192}}}}}) {
    const ModelConfig config = parse(changes);
    const Json written = parse_json(make_hf_config(config).text, "config.json");
    CHECK(parse_hf_config(JsonView(written, "config.json")) == config);
  }
}

TEST_CASE("llama: other spellings of names in files") {
  const NameTable& names = *llama_family.names;
  const std::string norm = "model.layers.1.input_layernorm.weight";
  for (const char* spelled : {"model.layers.1.input_layernorm.weight", "layers.1.input_layernorm.weight",
                              "language_model.model.layers.1.input_layernorm.weight",
                              "model.language_model.layers.1.input_layernorm.weight",
                              "module.model.layers.1._orig_mod.input_layernorm.weight"})
    CHECK(canonical_tensor(spelled, names).name == norm);
  CHECK(canonical_tensor("norm.weight", names).name == "model.norm.weight");
  CHECK(canonical_tensor("embed_tokens.weight", names).name == "model.embed_tokens.weight");
  CHECK(canonical_tensor("language_model.lm_head.weight", names).name == "lm_head.weight");
}

TEST_CASE("llama: the head in files of a tied model is not read where it is the embeddings, else refused") {
  const TestDir dir;
  const ModelConfig untied = parse(), tied = parse({{"tie_word_embeddings", true}});
  const auto tensors_of = [](const ModelConfig& config) {
    std::vector<NamedTensor> tensors;
    for (const TensorSpec& spec : tensor_specs(config))
      tensors.push_back({.name = spec.name, .value = Tensor::empty(spec.shape, DType::f32, Device::cpu)});
    return tensors;
  };
  const auto write = [&](const fs::path& at, float last_of_head) {
    const std::vector<NamedTensor> model = tensors_of(untied);
    for (const NamedTensor& t : model) t.value.fill(0.5);
    const Tensor& head = std::ranges::find(model, "lm_head.weight", &NamedTensor::name)->value;
    head.data<float>()[head.numel() - 1] = last_of_head;
    save_hf_weights(at, model, default_weight_files(untied));
    spit(at / "config.json", make_hf_config(tied).text);
  };
  const std::vector<NamedTensor> model = tensors_of(tied);
  write(dir / "same", 0.5F);
  std::vector<std::string> warnings;
  set_log_listener([&](LogLevel, const std::string& text) { warnings.push_back(text); });
  save_hf_weights(dir / "saved", model, load_hf_weights(dir / "same", model));
  set_log_listener({});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("'lm_head.weight' is the embeddings a second time") != std::string::npos);
  copy_hf_model(dir / "same", dir / "copied");
  for (const char* written : {"saved", "copied"}) CHECK_FALSE(HfWeights(dir / written).has("lm_head.weight"));

  write(dir / "other", 0.25F);
  const std::string want = "'lm_head.weight' differs from 'model.embed_tokens.weight'";
  CHECK(message_of([&] { load_hf_weights(dir / "other", model); }).find(want) != std::string::npos);
  CHECK(message_of([&] { copy_hf_model(dir / "other", dir / "copied_other"); }).find(want) !=
        std::string::npos);
}

TEST_CASE("llama: operations of a step as AutoModel counts them") {
  ModelConfig c = parse({{"num_key_value_heads", 2}});
  // 3 layers, hidden 16, MLP 24, vocabulary 40, 2 of 4 heads for keys and values, 5 rows of 10 tokens.
  const double layer = 12 * 16 * 16 + 6 * 16 * 16 + 18 * 16 * 24 + 6 * 16 * 10, head = 6 * 16 * 40;
  CHECK(llama_family.automodel_step_flops(c, 5, 10) == doctest::Approx(50 * (3 * layer + head)));
}
