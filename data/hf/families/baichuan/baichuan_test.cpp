#include "data/hf/families/baichuan/baichuan.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/hf_config.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelConfig parse(const Json& changes = Json::object()) {
  Json config = {{"model_type", "baichuan"}, {"hidden_size", 24},        {"intermediate_size", 20},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 6}, {"vocab_size", 40}};
  config.update(changes);
  return parse_hf_config(JsonView(config, "config.json"));
}
std::string fault(const Json& changes) {
  return message_of([&] { (void)parse(changes); });
}

}  // namespace

TEST_CASE("baichuan: the keys that are there tell the variants apart") {
  const ModelConfig rotary = parse({{"max_position_embeddings", 64}});
  CHECK(rotary.attention.rope == RopeConfig{.type = RopeType::standard});
  CHECK_FALSE(rotary.attention.alibi);
  CHECK_FALSE(rotary.normalized_head);
  CHECK(rotary.max_position_embeddings == 64);
  const ModelConfig sloped = parse({{"model_max_length", 32}, {"z_loss_weight", 0.5}});
  CHECK(sloped.z_loss_weight == 0.5);
  CHECK(sloped.attention.alibi);
  CHECK(sloped.attention.rope.type == RopeType::none);
  CHECK(sloped.normalized_head);
  CHECK(sloped.max_position_embeddings == 32);
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(sloped))
    if (spec.id.block_of_model() == 0) names.push_back(cat(spec.name, ' ', spec.shape));
  CHECK(names == std::vector<std::string>{"model.layers.0.input_layernorm.weight [24]",
                                          "model.layers.0.self_attn.W_pack.weight [72, 24]",
                                          "model.layers.0.self_attn.o_proj.weight [24, 24]"});
}

TEST_CASE("baichuan: what is refused") {
  CHECK(fault({{"z_loss_weight", -1}}).find("z_loss_weight: want") != std::string::npos);
  CHECK(
      fault({{"z_loss_weight", 0}, {"tie_word_embeddings", true}}).find("tie_word_embeddings: want false") !=
      std::string::npos);
  CHECK(fault({{"hidden_size", 25}}).find("hidden_size 25 is no multiple of num_attention_heads 6") !=
        std::string::npos);
}

TEST_CASE("baichuan: what is written is read as the same") {
  for (const Json& changes : {Json{{"max_position_embeddings", 64}}, Json{{"model_max_length", 32}},
                              Json{{"max_position_embeddings", 64}, {"z_loss_weight", 0}},
                              Json{{"model_max_length", 64}, {"z_loss_weight", 0.25}}}) {
    const ModelConfig config = parse(changes);
    const Json written = parse_json(make_hf_config(config).text, "config.json");
    CHECK(parse_hf_config(JsonView(written, "config.json")) == config);
  }
}
