#include "data/hf/families/decilm/decilm.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/hf_config.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/linear_layer/linear_block.h"
#include "model/blocks/mlp/mlp_block.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Json layer(Json attention, Json ffn) {
  Json part = {{"attention", {{"n_heads_in_group", nullptr}, {"no_op", false}, {"window_length", nullptr}}},
               {"ffn", {{"ffn_mult", nullptr}, {"no_op", false}, {"sparsify", nullptr}}}};
  part["attention"].update(attention);
  part["ffn"].update(ffn);
  return part;
}
const Json absent = {{"no_op", true}}, linear = {{"replace_with_linear", true}};
Json group(int heads) { return {{"n_heads_in_group", heads}}; }
Json wide(double mult) { return {{"ffn_mult", mult}}; }

/// Every form of a layer, the last one empty.
Json small(const Json& changes = Json::object()) {
  Json config = {{"model_type", "nemotron-nas"},
                 {"hidden_size", 192},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", nullptr},
                 {"intermediate_size", nullptr},
                 {"vocab_size", 40},
                 {"block_configs",
                  {layer(group(2), wide(2)), layer(absent, wide(2)), layer(group(1), absent),
                   layer(linear, linear), layer(group(2), wide(4.5)), layer(absent, absent)}}};
  config.update(changes);
  return config;
}
ModelConfig parse(const Json& config) { return parse_hf_config(JsonView(config, "config.json")); }
std::string fault(const Json& attention, const Json& ffn) {
  return message_of([&] { (void)parse(small({{"block_configs", {layer(attention, ffn)}}})); });
}

}  // namespace

TEST_CASE("decilm: each layer has the attention and the MLP that its block config says") {
  const ModelConfig c = parse(small());
  CHECK(c.blocks == std::vector<BlockKind>{attention_block, mlp_block, mlp_block, attention_block,
                                           linear_block, linear_block, attention_block, mlp_block});
  CHECK(c.names.layers(c.num_layers()) == 6);
  CHECK(c.attention.num_key_value_heads == 2);
  CHECK(c.attention.head_dim == 48);
  CHECK(c.mlp.intermediate_size == 256);
  CHECK(c.own_configs.size() == 2);
  CHECK(c.block(3).attention.num_key_value_heads == 4);
  CHECK(c.block(7).mlp.intermediate_size == 768);
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(c))
    if (const auto block = spec.id.block_of_model(); block >= 2 && block <= 6 && spec.shape.ndim() > 1)
      names.push_back(cat(spec.name, ' ', spec.shape));
  const std::string layers = "model.layers.";
  CHECK(names ==
        std::vector<std::string>{
            layers + "1.mlp.gate_proj.weight [256, 192]", layers + "1.mlp.up_proj.weight [256, 192]",
            layers + "1.mlp.down_proj.weight [192, 256]", layers + "2.self_attn.q_proj.weight [192, 192]",
            layers + "2.self_attn.k_proj.weight [192, 192]", layers + "2.self_attn.v_proj.weight [192, 192]",
            layers + "2.self_attn.o_proj.weight [192, 192]",
            layers + "3.self_attn.linear_attn.weight [192, 192]",
            layers + "3.mlp.linear_mlp.weight [192, 192]", layers + "4.self_attn.q_proj.weight [192, 192]",
            layers + "4.self_attn.k_proj.weight [96, 192]", layers + "4.self_attn.v_proj.weight [96, 192]",
            layers + "4.self_attn.o_proj.weight [192, 192]"});
}

TEST_CASE("decilm: the width of an MLP is rounded up to a multiple of 256") {
  const std::pair<double, std::int64_t> of_8192[] = {{0.5, 2816},    {1.0, 5632},      {1.3125, 7168},
                                                     {2.625, 14336}, {3.28125, 17920}, {5.25, 28672}};
  for (const auto& [mult, width] : of_8192) CHECK(decilm_intermediate_size(mult, 8192) == width);
  const std::pair<double, std::int64_t> of_16384[] = {{0.4875, 5376}, {4.875, 53248}, {39.0, 425984}};
  for (const auto& [mult, width] : of_16384) CHECK(decilm_intermediate_size(mult, 16384) == width);
}

TEST_CASE("decilm: what is written is read as the same") {
  for (const Json& changes : {Json::object(), Json{{"rope_theta", 5e5}, {"attention_bias", true}}}) {
    const ModelConfig config = parse(small(changes));
    const Json written = parse_json(make_hf_config(config).text, "config.json");
    CHECK(parse(written) == config);
  }
}

TEST_CASE("decilm: parts that would be misread are refused by name") {
  const std::string at = "config.json: 'block_configs[0].";
  CHECK(fault({{"n_heads_in_group", 2}, {"window_length", 7}}, wide(2)) ==
        at + "attention.window_length': want null: this part of Nemotron-NAS models is not supported, got 7");
  CHECK(fault(group(2), {{"ffn_mult", 2}, {"sparsify", {1}}}).find(at + "ffn.sparsify'") == 0);
  CHECK(fault(group(2), {{"intermediate_size", 512}}).find(at + "ffn.intermediate_size'") == 0);
  CHECK(fault(group(3), wide(2)) ==
        at + "attention.n_heads_in_group': want a divisor of num_attention_heads 4, got 3");
  CHECK(fault(group(2), wide(0)).find(at + "ffn.ffn_mult': want a number above 0") == 0);
  CHECK(fault(Json::object(), wide(2)).find("n_heads_in_group") != std::string::npos);
  CHECK(fault(absent, absent).find("'block_configs': want a layer that is not empty") != std::string::npos);
  CHECK(message_of([] {
          (void)parse(small({{"num_hidden_layers", 5}}));
        }) == "config.json: 'num_hidden_layers': want 6, as many as block_configs has, got 5");
}
