#include "model/config.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <set>

#include "model/blocks/attention/attention_block.h"
#include "model/blocks/mamba/mamba_block.h"
#include "model/blocks/mlp/mlp_block.h"
#include "model/blocks/moe/moe_block.h"
#include "model/test_configs.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
ModelConfig small() {
  ModelConfig c = with_experts({"ME*-", 32, 4, 2, 48, 4, 8, 16}, {8, 2, 24, 40, 0, 0});
  c.vocab_size = 96;
  c.attention.head_dim = 8;
  c.mamba.n_groups = 2;
  return c;
}

void check_refused(const std::function<void(ModelConfig&)>& change, const char* text) {
  ModelConfig c = small();
  change(c);
  CHECK_THROWS_WITH_AS(c.validate(), doctest::Contains(text), Error);
}
}  // namespace

TEST_CASE("config: tensor counts of the published models") {
  struct Published {
    const char* name;
    ModelConfig config;
    std::int64_t tensors, elements, mtp_tensors, all_elements;
  };
  const Sizes sizes_30b{nano_30b, 2688, 32, 2, 1856, 64, 64, 128};
  const std::vector<Published> models{
      {"H-4B", dense({h8, 3072, 32, 8, 12288, 112, 64, 128}), 311, 4489223040, 0, 4489223040},
      {"H-8B", dense({h8, 4096, 32, 8, 21504, 128, 64, 128}), 311, 8100852736, 0, 8100852736},
      {"H-47B", dense({h47, 8192, 64, 8, 30720, 256, 64, 256}), 577, 46791554816, 0, 46791554816},
      {"H-56B", dense({h56, 8192, 64, 8, 32768, 256, 64, 256}), 701, 56324350464, 0, 56324350464},
      {"Nano-9B-v2", dense({nano_9b, 4480, 40, 8, 15680, 128, 80, 128}), 341, 8888227328, 0, 8888227328},
      {"Nano-12B-v2", dense({nano_12b, 5120, 40, 8, 20480, 128, 80, 128}), 369, 12310001152, 0, 12310001152},
      {"3-Nano-4B", dense({nano_4b, 3136, 40, 8, 12544, 96, 80, 128}), 263, 3973556832, 0, 3973556832},
      {"3-Nano-30B", with_experts(sizes_30b, {128, 6, 1856, 3712, 0, 0}), 6243, 31577940288, 0, 31577940288},
      {"3.5-Lightning", with_experts(sizes_30b, {128, 6, 1856, 3712, 0, 1}), 6243, 31577940288, 270,
       32913266240},
      {"3-Super", with_experts({super, 4096, 32, 2, 2688, 128, 64, 128}, {512, 22, 2688, 5376, 1024, 1}),
       41643, 120668707840, 1040, 123611033088},
      {"3-Ultra", with_experts({ultra, 8192, 64, 2, 5120, 256, 64, 128}, {512, 22, 5120, 10240, 2048, 1}),
       49983, 549308993536, 1040, 560524603904},
  };
  for (const Published& m : models) {
    CAPTURE(m.name);
    CHECK_NOTHROW(m.config.validate());
    const TensorCount main = count_tensors(tensor_specs(m.config));
    const TensorCount mtp = count_tensors(mtp_tensor_specs(m.config));
    CHECK(main.tensors == m.tensors);
    CHECK(main.elements == m.elements);
    CHECK(mtp.tensors == m.mtp_tensors);
    CHECK(main.elements + mtp.elements == m.all_elements);
  }
}

TEST_CASE("config: block counts of the published models") {
  const auto counts = [](const char* pattern) {
    ModelConfig c;
    c.blocks = parse_pattern(pattern).blocks;
    return std::vector<std::int64_t>{c.num_layers(), c.count(mamba_block), c.count(mlp_block),
                                     c.count(moe_block), c.count(attention_block)};
  };
  using V = std::vector<std::int64_t>;
  CHECK(counts(h8) == V{52, 24, 24, 0, 4});
  CHECK(counts(h47) == V{98, 45, 48, 0, 5});
  CHECK(counts(h56) == V{118, 54, 54, 0, 10});
  CHECK(counts(nano_9b) == V{56, 27, 25, 0, 4});
  CHECK(counts(nano_12b) == V{62, 28, 28, 0, 6});
  CHECK(counts(nano_4b) == V{42, 21, 17, 0, 4});
  CHECK(counts(nano_30b) == V{52, 23, 0, 23, 6});
  CHECK(counts(super) == V{88, 40, 0, 40, 8});
  CHECK(counts(ultra) == V{108, 48, 0, 48, 12});
}

TEST_CASE("config: patterns") {
  const BlockPattern p = parse_pattern("ME|*-/*E/*E");
  CHECK(to_pattern(p.blocks) == "ME*-");
  REQUIRE(p.mtp.size() == 2);
  CHECK(to_pattern(p.mtp[0]) == "*E");
  CHECK(to_pattern(p.mtp[1]) == "*E");
  CHECK(parse_pattern("").blocks.empty());
  CHECK_THROWS_WITH_AS(parse_pattern("MEXM"), doctest::Contains("'X' at position 3"), Error);
  CHECK(name_of(moe_block) == "moe");
}

TEST_CASE("config: canonical names, shapes and marks of one block of each kind") {
  ModelConfig c = small();
  c.mamba.in_proj_bias = c.mamba.out_proj_bias = c.mlp.bias = c.moe.bias = true;
  c.moe.latent_size = 12;
  std::vector<std::string> lines;
  for (const TensorSpec& s : tensor_specs(c))
    lines.push_back(cat(s.name, " ", s.shape, s.keep_f32 ? " f32" : "", s.buffer ? " buffer" : "",
                        s.experts ? " experts" : ""));
  const std::vector<std::string> want{
      "backbone.embeddings.weight [96, 32]",
      "backbone.layers.0.norm.weight [32]",
      "backbone.layers.0.mixer.in_proj.weight [132, 32]",
      "backbone.layers.0.mixer.in_proj.bias [132]",
      "backbone.layers.0.mixer.conv1d.weight [96, 1, 4]",
      "backbone.layers.0.mixer.conv1d.bias [96]",
      "backbone.layers.0.mixer.dt_bias [4] f32",
      "backbone.layers.0.mixer.A_log [4] f32",
      "backbone.layers.0.mixer.D [4] f32",
      "backbone.layers.0.mixer.norm.weight [32]",
      "backbone.layers.0.mixer.out_proj.weight [32, 32]",
      "backbone.layers.0.mixer.out_proj.bias [32]",
      "backbone.layers.1.norm.weight [32]",
      "backbone.layers.1.mixer.gate.weight [8, 32] f32",
      "backbone.layers.1.mixer.gate.e_score_correction_bias [8] f32 buffer",
      "backbone.layers.1.mixer.fc1_latent_proj.weight [12, 32]",
      "backbone.layers.1.mixer.fc1_latent_proj.bias [12]",
      "backbone.layers.1.mixer.fc2_latent_proj.weight [32, 12]",
      "backbone.layers.1.mixer.fc2_latent_proj.bias [32]",
      "backbone.layers.1.mixer.experts.up_proj [8, 24, 12] experts",
      "backbone.layers.1.mixer.experts.down_proj [8, 12, 24] experts",
      "backbone.layers.1.mixer.shared_experts.up_proj.weight [40, 32]",
      "backbone.layers.1.mixer.shared_experts.up_proj.bias [40]",
      "backbone.layers.1.mixer.shared_experts.down_proj.weight [32, 40]",
      "backbone.layers.1.mixer.shared_experts.down_proj.bias [32]",
      "backbone.layers.2.norm.weight [32]",
      "backbone.layers.2.mixer.q_proj.weight [32, 32]",
      "backbone.layers.2.mixer.k_proj.weight [16, 32]",
      "backbone.layers.2.mixer.v_proj.weight [16, 32]",
      "backbone.layers.2.mixer.o_proj.weight [32, 32]",
      "backbone.layers.3.norm.weight [32]",
      "backbone.layers.3.mixer.up_proj.weight [48, 32]",
      "backbone.layers.3.mixer.up_proj.bias [48]",
      "backbone.layers.3.mixer.down_proj.weight [32, 48]",
      "backbone.layers.3.mixer.down_proj.bias [32]",
      "backbone.norm_f.weight [32]",
      "lm_head.weight [96, 32]",
  };
  CHECK(lines == want);
  CHECK(tensor_specs(small()).size() == 3 + 9 + 7 + 5 + 3);
  c.mamba.use_conv_bias = false;
  CHECK(tensor_specs(c).size() == want.size() - 1);
}

TEST_CASE("config: multi-token prediction") {
  ModelConfig c = small();
  CHECK(mtp_tensor_specs(c).empty());
  c.num_nextn_predict_layers = 2;
  std::set<std::string> names;
  for (const TensorSpec& s : mtp_tensor_specs(c)) names.insert(s.name);
  CHECK(names.size() == 2 * (3 + 5 + 7 + 1));
  for (const char* name :
       {"mtp.layers.0.enorm.weight", "mtp.layers.2.hnorm.weight", "mtp.layers.2.eh_proj.weight",
        "mtp.layers.2.mixer.q_proj.weight", "mtp.layers.3.mixer.experts.up_proj",
        "mtp.layers.1.final_layernorm.weight", "mtp.layers.3.final_layernorm.weight"})
    CHECK_MESSAGE(names.count(name) == 1, name);
  CHECK(names.count("mtp.layers.1.enorm.weight") == 0);
  CHECK(names.count("mtp.layers.0.final_layernorm.weight") == 0);
}

TEST_CASE("config: every promise of validate() is kept") {
  CHECK_NOTHROW(small().validate());
  using C = ModelConfig;
  check_refused([](C& c) { c.vocab_size = 0; }, "vocab_size: want at least 1, got 0");
  check_refused([](C& c) { c.hidden_size = -4; }, "hidden_size: want at least 1, got -4");
  check_refused([](C& c) { c.hidden_size = std::int64_t{1} << 40; }, "hidden_size: want at most");
  check_refused([](C& c) { c.blocks.clear(); }, "want at least one block");
  check_refused([](C& c) { c.layer_norm_epsilon = 0; }, "layer_norm_epsilon");
  check_refused([](C& c) { c.layer_norm_epsilon = std::nan(""); }, "layer_norm_epsilon");
  check_refused([](C& c) { c.initializer_range = -1; }, "initializer_range");
  check_refused([](C& c) { c.num_nextn_predict_layers = -1; }, "num_nextn_predict_layers");
  check_refused([](C& c) { c.num_nextn_predict_layers = 1, c.mtp_blocks.clear(); }, "multi-token prediction");
  check_refused([](C& c) { c.mamba.num_heads = 0; }, "mamba_num_heads: want at least 1");
  check_refused([](C& c) { c.mamba.num_heads = 5; },
                "mamba_num_heads: want a multiple of n_groups (2), got 5");
  check_refused([](C& c) { c.mamba.head_dim = 0; }, "mamba_head_dim");
  check_refused([](C& c) { c.mamba.num_heads = c.mamba.head_dim = 1 << 20; }, "product");
  check_refused([](C& c) { c.mamba.n_groups = 0; }, "n_groups");
  check_refused([](C& c) { c.mamba.ssm_state_size = 0; }, "ssm_state_size");
  check_refused([](C& c) { c.mamba.conv_kernel = 0; }, "conv_kernel");
  check_refused([](C& c) { c.mamba.chunk_size = 0; }, "chunk_size");
  check_refused([](C& c) { c.mamba.time_step_min = 0; }, "time_step_min");
  check_refused([](C& c) { c.mamba.time_step_max = 1e-4; }, "time_step_max");
  check_refused([](C& c) { c.mamba.time_step_floor = -1; }, "time_step_floor");
  check_refused([](C& c) { c.mamba.time_step_limit_low = -1; }, "time_step_limit[0]");
  check_refused([](C& c) { c.mamba.time_step_limit_low = 2, c.mamba.time_step_limit_high = 1; },
                "time_step_limit[1]");
  check_refused([](C& c) { c.attention.num_attention_heads = 0; }, "num_attention_heads");
  check_refused([](C& c) { c.attention.num_key_value_heads = 3; }, "num_attention_heads: want a multiple of");
  check_refused([](C& c) { c.attention.head_dim = 0; }, "head_dim");
  check_refused([](C& c) { c.mlp.intermediate_size = 0; }, "intermediate_size");
  check_refused([](C& c) { c.moe.n_routed_experts = 0; }, "n_routed_experts");
  check_refused([](C& c) { c.moe.num_experts_per_tok = 9; }, "num_experts_per_tok: want at most 8");
  check_refused([](C& c) { c.moe.intermediate_size = 0; }, "moe_intermediate_size");
  check_refused([](C& c) { c.moe.shared_expert_intermediate_size = -1; }, "moe_shared_expert");
  check_refused([](C& c) { c.moe.latent_size = -1; }, "moe_latent_size");
  check_refused([](C& c) { c.moe.n_group = 3; }, "n_routed_experts: want a multiple of n_group (3), got 8");
  check_refused([](C& c) { c.moe.topk_group = 2; }, "topk_group: want at most n_group (1), got 2");
  check_refused([](C& c) { c.moe.n_group = 8, c.moe.topk_group = 4; }, "two experts in a group");
  check_refused([](C& c) { c.moe.n_group = 4, c.moe.num_experts_per_tok = 3; },
                "num_experts_per_tok: want at most 2");
  check_refused([](C& c) { c.moe.routed_scaling_factor = std::nan(""); }, "routed_scaling_factor");
  check_refused([](C& c) { c.pad_token_id = 96; }, "pad_token_id: want an id below vocab_size (96), got 96");
  check_refused([](C& c) { c.bos_token_id = -1; }, "bos_token_id");
  check_refused([](C& c) { c.eos_token_id = {2, 100}; }, "eos_token_id");
}

TEST_CASE("config: more parameters than can be counted are refused") {
  ModelConfig c = small();
  c.blocks.assign(16384, moe_block);
  c.hidden_size = c.moe.shared_expert_intermediate_size = 1 << 24;
  CHECK_THROWS_WITH_AS(c.validate(),
                       "the sizes: want at most 1125899906842624 parameters, got more; tensor "
                       "'backbone.layers.1.mixer.shared_experts.down_proj.weight' alone has the shape "
                       "[16777216, 16777216], in 16384 blocks",
                       Error);
  std::vector<TensorSpec> specs(16384, {.id = {}, .name = "t", .shape = {1 << 26, 1 << 24}});
  CHECK_THROWS_WITH_AS(count_tensors(specs),
                       doctest::Contains("tensor 't' of shape [67108864, 16777216] after"), Error);
  specs = {{.id = {}, .name = "u", .shape = {1 << 24, 1 << 24, 1 << 24}}};
  CHECK_THROWS_WITH_AS(count_tensors(specs), doctest::Contains("[16777216, 16777216, 16777216] has more"),
                       Error);
  c = small();
  c.num_nextn_predict_layers = 1024;
  c.mtp_blocks.assign(17, mlp_block);
  CHECK_THROWS_WITH_AS(c.validate(), "multi-token prediction: want at most 16384 blocks, got 1024 x 17",
                       Error);
}

TEST_CASE("config: keys of absent block kinds are not looked at") {
  ModelConfig c = small();
  c.blocks = parse_pattern("--").blocks;
  c.mamba.num_heads = c.attention.num_attention_heads = c.moe.n_routed_experts = 0;
  CHECK_NOTHROW(c.validate());
  c.num_nextn_predict_layers = 1;
  CHECK_THROWS_WITH_AS(c.validate(), doctest::Contains("num_attention_heads"), Error);
}
