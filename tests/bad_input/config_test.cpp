#include <nlohmann/json.hpp>

#include "tests/bad_input/refused.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("bad config.json: texts that are no configuration are refused with the file and the place") {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"hello", "not valid JSON at byte 1"},
           {"", "not valid JSON"},
           {"[]", "want an object"},
           {"null", "want an object"},
           {"{} {}", "not valid JSON at byte 4"},
           {std::string(100'000, '['), "nested deeper"},
           {R"({"model_type": "nemotron_h"})", "hybrid_override_pattern"}}) {
    CAPTURE(part);
    const ModelDir dir;
    spit(dir / "config.json", text);
    check_refused(dir.path(), {"inspect", "--model", "."}, {"config.json", part});
  }
}

TEST_CASE("bad config.json: a wrong value is refused with the key, the wish and the fact") {
  struct Case {
    const char* key;
    Json value;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases{
      {"hybrid_override_pattern", "MX*-", {"'X'", "position 2"}},
      {"hybrid_override_pattern", "", {"at least one block"}},
      {"hybrid_override_pattern", 3, {"want a string, got 3"}},
      {"hybrid_override_pattern", std::string(400'000, 'M'), {"at most", "400000"}},
      {"num_attention_heads", 0, {"num_attention_heads", "at least 1", "got 0"}},
      {"num_attention_heads", 3, {"multiple of num_key_value_heads (2), got 3"}},
      {"num_key_value_heads", 3, {"multiple of num_key_value_heads (3), got 4"}},
      {"mamba_num_heads", 5, {"mamba_num_heads", "multiple of n_groups (2), got 5"}},
      {"n_groups", 0, {"n_groups", "at least 1"}},
      {"n_routed_experts", 1, {"num_experts_per_tok", "at most 1", "got 2"}},
      {"num_experts_per_tok", 9, {"num_experts_per_tok", "got 9"}},
      {"n_group", 3, {"n_routed_experts", "multiple of n_group (3), got 8"}},
      {"topk_group", 2, {"topk_group", "got 2"}},
      {"vocab_size", -1, {"vocab_size", "got -1"}},
      {"vocab_size", 1LL << 62, {"vocab_size", "at most"}},
      {"hidden_size", "32", {"'hidden_size': want an integer, got \"32\""}},
      {"hidden_size", 32.5, {"'hidden_size': want an integer, got 32.5"}},
      {"use_bias", 1, {"'use_bias': want true or false, got 1"}},
      {"layer_norm_epsilon", -1, {"layer_norm_epsilon", "got -1"}},
      {"time_step_limit", {3, 1}, {"time_step_limit", "got 1"}},
      {"eos_token_id", 100'000, {"eos_token_id", "below vocab_size (96)"}},
      {"model_type", "gpt2", {"'model_type': want \"nemotron_h\", \"llama\"", "got \"gpt2\""}},
      {"mlp_hidden_act", "gelu", {"mlp_hidden_act", "gelu"}},
      {"torch_dtype", "int8", {"torch_dtype", "int8"}},
      {"per_layer_config",
       Json::array({{{"vocab_size", 1}}}),
       {"'per_layer_config[0].vocab_size': want 96 as for the whole model", "got 1"}},
      {"quantization_config",
       {{"quant_method", "modelopt"}},
       {"'quantization_config'", "weights are quantized"}},
      {"llm_config", {{"model_type", "gpt2"}}, {"'llm_config'", "several parts"}},
      {"intermediate_size", {48, 64}, {"'intermediate_size[1]': want 48", "got 64"}},
  };
  const ModelDir dir;
  const std::string good = slurp(dir / "config.json");
  for (const Case& c : cases) {
    CAPTURE(c.key);
    CAPTURE(c.parts.back());
    spit(dir / "config.json", good);
    dir.edit_json("config.json", [&](Json& j) {
      if (std::string(c.key) == "hybrid_override_pattern") j.erase("layers_block_type");
      j[c.key] = c.value;
    });
    std::vector<std::string> parts = c.parts;
    parts.emplace_back("config.json");
    check_refused(dir.path(), forward_here, parts);
  }
}

TEST_CASE("bad config.json: what would be read as another model is refused by every command") {
  const ModelDir dir("train20");
  dir.edit_json("config.json", [](Json& j) { j["quantization_config"] = {{"quant_method", "modelopt"}}; });
  const std::vector<std::string> parts{"config.json: 'quantization_config' (quant_method \"modelopt\")"};
  check_refused(dir.path(), {"inspect", "--model", "."}, parts);
  check_refused(dir.path(), {"convert", ".", "converted"}, parts);
  check_refused(dir.path(),
                {"generate", "--model", ".", "--tokenizer", sample_tokenizer().string(), "--prompt", "x"},
                parts);
  check_refused(dir.path(), {"train", "--check", "recipe.yaml"}, parts);
  check_refused(dir.path(), train_with({}), parts);
}

TEST_CASE("bad config.json: one of a far larger model is refused before any memory is taken for it") {
  const ModelDir dir;
  dir.edit_json("config.json", [](Json& j) { j["hidden_size"] = j["vocab_size"] = 1 << 24; });
  check_refused(dir.path(), forward_here, {"backbone.embeddings.weight is F32 [96, 32]", "16777216"});
}

TEST_CASE("bad config.json: keys that are left out take defaults, and the weights disagree by name") {
  const ModelDir dir;
  dir.edit_json("config.json", [](Json& j) { j.erase("vocab_size"); });
  check_refused(dir.path(), forward_here, {"lm_head.weight", "131072"});
}
