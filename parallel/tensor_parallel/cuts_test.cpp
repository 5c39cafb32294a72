#include "parallel/tensor_parallel/cuts.h"

#include <doctest/doctest.h>

#include "model/test_models.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;
using Ranges = std::vector<Range>;

namespace {

TensorCut cut_of(const ModelSetup& config, const GridSizes& sizes, std::int64_t rank, const std::string& name,
                 bool sequence_parallel = false) {
  const auto specs = tensor_specs(config);
  const auto spec = std::ranges::find(specs, name, &TensorSpec::name);
  REQUIRE(spec != specs.end());
  return TensorCuts(config, TensorParallelPlan(config, sequence_parallel), sizes)(*spec,
                                                                                  place_of(sizes, rank));
}

Ranges rows(const TensorCut& cut) { return cut.shard.ranges()[0]; }

std::string error_of(const ModelConfig& config, const GridSizes& sizes,
                     const std::vector<TensorParallelRule>& rules = {}) {
  return message_of([&] { TensorCuts(config, TensorParallelPlan(config, false, rules), sizes); });
}

/// Every block kind, every bias and norms of heads; sizes that 8 ranks divide.
ModelConfig wide_config() {
  ModelConfig c = with_experts({"M*-E", 16, 16, 2, 24, 16, 2, 3}, {8, 2, 12, 8, 5});
  c.vocab_size = 21;
  c.attention.head_dim = 4;
  c.mamba.n_groups = 2;
  c.mamba.in_proj_bias = c.mamba.out_proj_bias = c.mlp.bias = c.moe.bias = true;
  c.attention.qkv_bias = c.attention.output_bias = true;
  c.attention.head_norm = NormKind::rmsnorm;
  return c;
}

}  // namespace

TEST_CASE("tensor cuts: Mamba's segments are cut one by one") {
  // Worked example: 64 heads of 64 channels, 8 groups of 128 states, 4 taps, rank 1 of 4.
  ModelConfig c = dense({"M", 512, 8, 8, 8, 64, 64, 128});
  c.mamba.n_groups = 8;
  c.mamba.in_proj_bias = c.mamba.out_proj_bias = true;
  const std::string mixer = "backbone.layers.0.mixer";
  const Ranges in_proj{{1024, 2048}, {5120, 6144}, {8448, 8704}, {9472, 9728}, {10256, 10272}};
  for (const char* member : {".in_proj.weight", ".in_proj.bias"}) {
    const TensorCut cut = cut_of(c, {.tp = 4}, 1, mixer + member);
    CHECK(cut.shard.global_shape()[0] == 10304);
    CHECK(cut.shard.shape()[0] == 2576);
    CHECK(rows(cut) == in_proj);
    CHECK(cut.sum == std::nullopt);
    CHECK(cut.counted == Ranges{{0, cut.shard.numel()}});
  }
  for (const char* member : {".conv1d.weight", ".conv1d.bias"}) {
    const TensorCut cut = cut_of(c, {.tp = 4}, 1, mixer + member);
    CHECK(cut.shard.global_shape()[0] == 6144);
    CHECK(cut.shard.shape()[0] == 1536);
    CHECK(rows(cut) == Ranges{{1024, 2048}, {4352, 4608}, {5376, 5632}});
  }
  for (const char* member : {".A_log", ".D", ".dt_bias"})
    CHECK(rows(cut_of(c, {.tp = 4}, 1, mixer + member)) == Ranges{{16, 32}});
  CHECK(rows(cut_of(c, {.tp = 4}, 1, mixer + ".norm.weight")) == Ranges{{1024, 2048}});
  CHECK(cut_of(c, {.tp = 4}, 1, mixer + ".out_proj.weight").shard.ranges() ==
        std::vector<Ranges>{{{0, 512}}, {{1024, 2048}}});
}

TEST_CASE("tensor cuts: fewer groups of B and C than ranks") {
  ModelConfig c = dense({"M", 512, 8, 8, 8, 64, 64, 128});
  c.mamba.n_groups = 2;  // rank 5 of 8 has group 1, as have ranks 4 to 7
  const std::string mixer = "backbone.layers.0.mixer";
  const TensorCut in_proj = cut_of(c, {.tp = 8}, 5, mixer + ".in_proj.weight");
  CHECK(rows(in_proj) == Ranges{{2560, 3072}, {6656, 7168}, {8320, 8448}, {8576, 8704}, {8744, 8752}});
  CHECK(in_proj.sum == Group::state_replicas);
  CHECK(in_proj.summed == Ranges{{1024 * 512, 1280 * 512}});
  CHECK(in_proj.counted == Ranges{{0, 1024 * 512}, {1280 * 512, 1288 * 512}});
  const TensorCut first = cut_of(c, {.tp = 8}, 4, mixer + ".in_proj.weight");
  CHECK(first.summed == in_proj.summed);
  CHECK(first.counted == Ranges{{0, 1288 * 512}});
  const TensorCut conv = cut_of(c, {.tp = 8}, 5, mixer + ".conv1d.bias");
  CHECK(rows(conv) == Ranges{{2560, 3072}, {4224, 4352}, {4480, 4608}});
  CHECK(conv.summed == Ranges{{512, 768}});
  CHECK(conv.counted == Ranges{{0, 512}});
  CHECK(head_replicas(c, TensorParallelPlan(c), 8).state == 4);
  CHECK(head_replicas(c, TensorParallelPlan(c), 8).kv == 1);  // no attention
}

TEST_CASE("tensor cuts: fewer key-value heads than ranks") {
  // 32 query heads, 2 key-value heads, 8 ranks: ranks 0 to 3 hold head 0, rank r the queries 4 r to 4 r + 3.
  const ModelConfig c = dense({"*", 64, 32, 2, 8, 8, 8, 8});  // head_dim 128
  const std::string mixer = "backbone.layers.0.mixer";
  for (std::int64_t r = 0; r < 8; ++r) {
    CAPTURE(r);
    CHECK(rows(cut_of(c, {.tp = 8}, r, mixer + ".q_proj.weight")) == Ranges{{r * 512, (r + 1) * 512}});
    for (const char* member : {".k_proj.weight", ".v_proj.weight"}) {
      const TensorCut cut = cut_of(c, {.tp = 8}, r, mixer + member);
      CHECK(rows(cut) == Ranges{{r / 4 * 128, r / 4 * 128 + 128}});
      CHECK(cut.sum == Group::kv_replicas);
      CHECK(cut.summed == Ranges{{0, 128 * 64}});
      CHECK(cut.counted == (r % 4 == 0 ? Ranges{{0, 128 * 64}} : Ranges{}));
    }
    CHECK(cut_of(c, {.tp = 8}, r, mixer + ".o_proj.weight").shard.ranges()[1] ==
          Ranges{{r * 512, (r + 1) * 512}});
  }
  CHECK(head_replicas(c, TensorParallelPlan(c), 8).kv == 4);
  CHECK(head_replicas(c, TensorParallelPlan(c), 2).kv == 1);
  CHECK(head_replicas(c, TensorParallelPlan(c, false, {{"backbone.layers.*.mixer.*_proj", "replicated"}}), 8)
            .kv == 1);
  CHECK(cut_of(c, {.tp = 2}, 1, mixer + ".k_proj.weight").sum == std::nullopt);
}

TEST_CASE("tensor cuts: a vocabulary of any size is cut without padding") {
  CHECK(vocabulary_range(131072, 8, 3) == Range{49152, 65536});
  const auto parts = [](std::int64_t vocabulary, std::int64_t ranks) {
    Ranges all;
    for (std::int64_t r = 0; r < ranks; ++r) all.push_back(vocabulary_range(vocabulary, ranks, r));
    return all;
  };
  CHECK(parts(23, 4) == Ranges{{0, 6}, {6, 12}, {12, 18}, {18, 23}});
  CHECK(parts(5, 4) == Ranges{{0, 2}, {2, 4}, {4, 5}, {5, 5}});
  CHECK(parts(1, 3) == Ranges{{0, 1}, {1, 1}, {1, 1}});
  ModelConfig c = tiny_config("*");
  c.vocab_size = 5;
  const TensorCut none = cut_of(c, {.tp = 4}, 3, "lm_head.weight");
  CHECK(none.shard.shape() == Shape({0, 12}));
  CHECK(none.counted.empty());
}

TEST_CASE("tensor cuts: experts by ep and expt_tp") {
  const ModelConfig c = wide_config();
  const GridSizes sizes{.tp = 2, .cp = 2, .dp_shard = 2, .expt_tp = 2, .ep = 4};
  const TensorCut up = cut_of(c, sizes, 5, "backbone.layers.3.mixer.experts.up_proj");  // expt_tp 1, ep 2
  CHECK(up.shard.ranges() == std::vector<Ranges>{{{4, 6}}, {{6, 12}}, {{0, 5}}});
  CHECK(up.expert);
  CHECK(up.sum == std::nullopt);
  CHECK(up.counted == Ranges{{0, 2 * 6 * 5}});
  const TensorCut down = cut_of(c, sizes, 5, "backbone.layers.3.mixer.experts.down_proj");
  CHECK(down.shard.ranges() == std::vector<Ranges>{{{4, 6}}, {{0, 5}}, {{6, 12}}});
}

TEST_CASE("tensor cuts: blocks of different sizes are cut by their own") {
  ModelConfig c = wide_config();
  c.blocks = parse_pattern("M*-EM*-E").blocks;
  own_config(c, 4).mamba.num_heads = 8, own_config(c, 4).mamba.ssm_state_size = 5;
  own_config(c, 5).attention.num_attention_heads = 8, own_config(c, 5).attention.head_dim = 6;
  own_config(c, 6).mlp.intermediate_size = 16;
  own_config(c, 7).moe.n_routed_experts = 12, own_config(c, 7).moe.intermediate_size = 4;
  const GridSizes sizes{.tp = 2, .cp = 2, .dp_shard = 2, .expt_tp = 2, .ep = 4};
  // z, x, B, C and dt: 16 + 16 + 10 + 10 + 8 rows
  CHECK(rows(cut_of(c, {.tp = 2}, 1, "backbone.layers.4.mixer.in_proj.weight")) ==
        Ranges{{8, 16}, {24, 32}, {37, 42}, {47, 52}, {56, 60}});
  CHECK(rows(cut_of(c, {.tp = 2}, 1, "backbone.layers.5.mixer.k_proj.weight")) == Ranges{{6, 12}});
  CHECK(rows(cut_of(c, {.tp = 2}, 1, "backbone.layers.6.mixer.up_proj.weight")) == Ranges{{8, 16}});
  CHECK(cut_of(c, sizes, 5, "backbone.layers.7.mixer.experts.up_proj").shard.ranges() ==
        std::vector<Ranges>{{{6, 9}}, {{2, 4}}, {{0, 5}}});
  CHECK(cut_of(c, sizes, 5, "backbone.layers.3.mixer.experts.up_proj").shard.ranges() ==
        std::vector<Ranges>{{{4, 6}}, {{6, 12}}, {{0, 5}}});

  CHECK(error_of(c, {.ep = 8}) ==
        "distributed.ep_size is 8; n_routed_experts of block 7 is 12; want a divisor. Sizes that fit this "
        "model: "
        "1, 2 or 4");
  CHECK(error_of(c, {.expt_tp = 3}) ==
        "distributed.expert_tp_size is 3; moe_intermediate_size of block 7 is 4; want a divisor. Sizes that "
        "fit this "
        "model: 1, 2 or 4");
  CHECK(error_of(c, {.tp = 16}) ==
        "distributed.tp_size is 16; num_attention_heads of block 5 is 8; want a divisor. Sizes that fit this "
        "model: "
        "1, 2, 4 or 8");
  const TensorParallelPlan plan(c);
  CHECK(head_replicas(c, plan, 4).kv == 2);
  own_config(c, 5).attention.num_key_value_heads = 4;
  CHECK(head_replicas(c, plan, 2).kv == 1);
  CHECK(
      message_of([&] { head_replicas(c, plan, 4); }) ==
      "distributed.tp_size is 4; num_key_value_heads is 2, which puts a head on 2 ranks; num_key_value_heads "
      "of block 5 is "
      "4, which puts a head on 1 rank; want the same number in all blocks, as a tp_size of at most 2 gives");
}

TEST_CASE("tensor cuts: which gradients are partial over tp") {
  const ModelConfig c = wide_config();
  const auto sum = [&](const char* name, bool sequence_parallel) {
    return cut_of(c, {.tp = 2}, 1, name, sequence_parallel).sum;
  };
  for (const char* name :
       {"backbone.norm_f.weight", "backbone.layers.2.norm.weight", "backbone.layers.2.mixer.down_proj.bias",
        "backbone.layers.0.mixer.out_proj.bias", "backbone.layers.1.mixer.o_proj.bias",
        "backbone.layers.3.mixer.shared_experts.down_proj.bias"}) {
    CAPTURE(name);
    CHECK(sum(name, false) == std::nullopt);
    CHECK(sum(name, true) == Group::tp);
  }
  // Norms of heads are not of rows, but of the rank's heads: sequence parallelism changes nothing.
  for (const char* name :
       {"backbone.layers.1.mixer.q_norm.weight", "backbone.layers.1.mixer.k_norm.weight",
        "backbone.layers.3.mixer.gate.weight", "backbone.layers.3.mixer.fc1_latent_proj.bias",
        "backbone.layers.3.mixer.fc2_latent_proj.weight"}) {
    CAPTURE(name);
    CHECK(sum(name, false) == Group::tp);
    CHECK(sum(name, true) == Group::tp);
    CHECK(cut_of(c, {}, 0, name, true).sum == std::nullopt);
  }
  CHECK(sum("backbone.layers.3.mixer.gate.e_score_correction_bias", true) == std::nullopt);
  CHECK(sum("backbone.layers.2.mixer.up_proj.bias", true) == std::nullopt);
  // The bias of a replicated layer is added to the rank's own rows as well.
  const TensorParallelPlan plan(c, true,
                                {{"backbone.layers.2.mixer.*", "replicated"},
                                 {"backbone.layers.3.mixer.shared_experts.*", "replicated"}});
  const TensorCuts cuts(c, plan, {.tp = 2});
  const TensorCuts whole_attention(
      c, TensorParallelPlan(c, true, {{"backbone.layers.1.mixer.*", "replicated"}}), {.tp = 2});
  for (const TensorSpec& spec : tensor_specs(c))
    if (spec.name.ends_with("q_norm.weight")) CHECK(whole_attention(spec, {.tp = 1}).sum == std::nullopt);
  for (const TensorSpec& spec : tensor_specs(c)) {
    if (spec.name.find("down_proj") == std::string::npos || spec.experts) continue;
    CHECK(cuts(spec, {.tp = 1}).sum ==
          (spec.name.ends_with(".bias") ? std::optional(Group::tp) : std::nullopt));
    CHECK(cuts(spec, {.tp = 1}).shard.whole());
  }
}

TEST_CASE("tensor cuts: the factors of an adapter follow their weight") {
  ModelSetup c = wide_config();
  for (const TensorSpec& spec : tensor_specs(c))
    if (spec.linear) c.choices.lora.modules.emplace(spec.id.module(), LoraModule{.rank = 3});
  const GridSizes sizes{.tp = 4, .expt_tp = 2, .ep = 2};
  const auto cut = [&](const char* module, char factor) {
    return cut_of(c, sizes, 1, cat(module, ".lora_", factor, ".weight"));
  };
  const auto weight = [&](const std::string& name) { return cut_of(c, sizes, 1, name); };
  const auto is_partial = [](const TensorCut& of_rank, Group over) {
    return of_rank.sum == over && of_rank.summed == Ranges{{0, of_rank.shard.numel()}};
  };
  for (const char* module : {"backbone.layers.0.mixer.in_proj", "backbone.layers.1.mixer.k_proj",
                             "backbone.layers.2.mixer.up_proj", "lm_head"}) {  // by rows
    CAPTURE(module);
    CHECK(rows(cut(module, 'B')) == rows(weight(cat(module, ".weight"))));
    CHECK(cut(module, 'B').sum == weight(cat(module, ".weight")).sum);
    CHECK(cut(module, 'A').shard.whole());
    CHECK(is_partial(cut(module, 'A'), Group::tp));
  }
  for (const char* module :
       {"backbone.layers.0.mixer.out_proj", "backbone.layers.1.mixer.o_proj"}) {  // by columns
    CAPTURE(module);
    CHECK(cut(module, 'A').shard.ranges()[1] == weight(cat(module, ".weight")).shard.ranges()[1]);
    CHECK(cut(module, 'A').sum == std::nullopt);
    CHECK(cut(module, 'B').shard.whole());
    CHECK(is_partial(cut(module, 'B'), Group::tp));
  }
  const char* latent = "backbone.layers.3.mixer.fc1_latent_proj";
  for (const char factor : {'A', 'B'}) {
    CHECK(cut(latent, factor).shard.whole());
    CHECK(is_partial(cut(latent, factor), Group::tp));
  }
  const std::string experts = "backbone.layers.3.mixer.experts";
  const auto of_experts = [&](const char* stack, char factor) {
    return cut(cat(experts, ".", stack).c_str(), factor);
  };
  const std::vector<Ranges> up = weight(experts + ".up_proj").shard.ranges(),
                            down = weight(experts + ".down_proj").shard.ranges();
  CHECK(of_experts("up_proj", 'B').shard.ranges() == std::vector<Ranges>{up[0], up[1], {{0, 3}}});
  CHECK(of_experts("down_proj", 'A').shard.ranges() == std::vector<Ranges>{down[0], {{0, 3}}, down[2]});
  for (const TensorCut& whole : {of_experts("up_proj", 'A'), of_experts("down_proj", 'B')}) {
    CHECK(whole.shard.ranges()[0] == up[0]);
    CHECK(whole.shard.numel() * 2 == whole.shard.global_shape().numel());
    CHECK(is_partial(whole, Group::expt_tp));
    CHECK(whole.expert);
  }
  const TensorCuts replicated(c, TensorParallelPlan(c, true, {{"backbone.layers.2.mixer.*", "replicated"}}),
                              {.tp = 2});
  for (const TensorSpec& spec : tensor_specs(c))
    if (spec.name.starts_with("backbone.layers.2.") && spec.factor != LoraFactor::none)
      CHECK(replicated(spec, {.tp = 1}).sum == std::nullopt);
}

TEST_CASE("tensor cuts: every element is held, and counted once") {
  ModelSetup c = wide_config();
  for (const TensorSpec& spec : tensor_specs(c))
    if (spec.linear) c.choices.lora.modules.emplace(spec.id.module(), LoraModule{.rank = 3});
  for (const GridSizes& sizes : {GridSizes{}, GridSizes{.tp = 2}, GridSizes{.tp = 4, .ep = 4},
                                 GridSizes{.tp = 8, .expt_tp = 2, .ep = 4}, GridSizes{.tp = 8, .expt_tp = 4},
                                 GridSizes{.tp = 2, .dp_shard = 4, .expt_tp = 1, .ep = 8}}) {
    CAPTURE(to_string(sizes));
    const TensorParallelPlan plan(c, true);
    const TensorCuts cuts(c, plan, sizes);
    for (const TensorSpec& spec : tensor_specs(c)) {
      CAPTURE(spec.name);
      std::vector<int> held(static_cast<std::size_t>(spec.shape.numel())), counted(held), summed(held);
      std::int64_t holders = 0;
      for (std::int64_t rank = 0; rank < sizes.ranks(); ++rank) {
        const GridPlace place = place_of(sizes, rank);
        if (spec.experts ? place.expt_dp > 0 : place.dp(sizes) > 0) continue;  // copies
        ++holders;
        const TensorCut cut = cuts(spec, place);
        CHECK(cut.expert == spec.experts);
        CHECK((cut.sum == std::nullopt) == cut.summed.empty());
        cut.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
          for (std::int64_t i = 0; i < count; ++i) {
            const auto inside = [at = local + i](const Range& r) { return r.begin <= at && at < r.end; };
            const auto g = static_cast<std::size_t>(global + i);
            ++held[g];
            counted[g] += static_cast<int>(std::ranges::count_if(cut.counted, inside));
            summed[g] += static_cast<int>(std::ranges::count_if(cut.summed, inside));
          }
        });
      }
      CHECK(counted == std::vector(counted.size(), 1));
      CHECK(*std::ranges::min_element(held) >= 1);
      const TensorStyle style = plan.style(spec);
      if (style == TensorStyle::sequence_parallel)
        CHECK(held == std::vector(held.size(), static_cast<int>(holders)));
      // Where several ranks hold an element of a layer that is cut, each has a part of the gradient.
      if (style == TensorStyle::colwise)
        for (std::size_t i = 0; i < held.size(); ++i) CHECK(summed[i] == (held[i] > 1 ? held[i] : 0));
    }
  }
}

TEST_CASE("tensor cuts: sizes that do not divide are refused with those that do") {
  const ModelConfig attention = dense({"*", 64, 24, 6, 8, 8, 8, 8});
  CHECK(
      error_of(attention, {.tp = 5}) ==
      "distributed.tp_size is 5; num_attention_heads is 24; want a divisor. Sizes that fit this model: 1, 2, "
      "3, 6, 12 or 24");
  CHECK(
      error_of(attention, {.tp = 4}) ==
      "distributed.tp_size is 4; num_key_value_heads is 6; want a divisor or a multiple. Sizes that fit this "
      "model: 1, 2, 3, 6, 12 or 24");
  CHECK(error_of(attention, {.tp = 12}) == "no error");
  ModelConfig mamba = dense({"M-", 64, 8, 8, 20, 12, 8, 8});
  mamba.mamba.n_groups = 3;
  CHECK(error_of(mamba, {.tp = 8}) ==
        "distributed.tp_size is 8; mamba_num_heads is 12; want a divisor. Sizes that fit this model: 1");
  CHECK(
      error_of(mamba, {.tp = 4}) ==
      "distributed.tp_size is 4; n_groups is 3; want a divisor or a multiple. Sizes that fit this model: 1");
  CHECK(error_of(mamba, {.tp = 3}) ==
        "distributed.tp_size is 3; intermediate_size is 20; want a divisor. Sizes that fit this model: 1");
  // What the plan leaves whole limits nothing.
  CHECK(error_of(mamba, {.tp = 5}, {{"backbone.layers.0.mixer.*", "replicated"}}) == "no error");
  const ModelConfig experts = with_experts({"E", 16, 8, 8, 8, 8, 8, 8}, {6, 2, 10, 9});
  CHECK(error_of(experts, {.tp = 2}) ==
        "distributed.tp_size is 2; moe_shared_expert_intermediate_size is 9; want a divisor. Sizes that fit "
        "this model: 1, 3 or 9");
  CHECK(error_of(experts, {.dp_shard = 4, .expt_tp = 4}) ==
        "distributed.expert_tp_size is 4; moe_intermediate_size is 10; want a divisor. Sizes that fit this "
        "model: 1, 2, 5 or 10");
  CHECK(error_of(experts, {.dp_shard = 4, .ep = 4}) ==
        "distributed.ep_size is 4; n_routed_experts is 6; want a divisor. Sizes that fit this model: 1, 2, 3 "
        "or "
        "6");
  // A long list ends early.
  CHECK(error_of(dense({"-", 64, 8, 8, 21504, 8, 8, 8}), {.tp = 5}).ends_with("14, 16, 21, 24, ..."));
}
