#include <doctest/doctest.h>

#include "model/flops.h"
#include "model/test_models.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

// Models whose blocks differ in size.

namespace {

Shape shape_of(const ModelSetup& config, const std::string& name) {
  for (const TensorSpec& spec : tensor_specs(config))
    if (spec.name == name) return spec.shape;
  FAIL("no tensor " << name);
  return {};
}

std::string refusal(const std::function<void(ModelConfig&)>& change) {
  ModelConfig c = tiny_pruned_config();
  change(c);
  return message_of([&] { c.validate(); });
}

}  // namespace

TEST_CASE("own configs: blocks have their tensors, and all others the common ones") {
  const ModelConfig c = tiny_pruned_config();
  CHECK_NOTHROW(c.validate());
  const std::string layers = "backbone.layers.";
  CHECK(shape_of(c, layers + "0.mixer.A_log") == Shape{4});
  CHECK(shape_of(c, layers + "4.mixer.A_log") == Shape{6});
  CHECK(shape_of(c, layers + "4.mixer.in_proj.weight") == Shape{12 + (12 + 2 * 9) + 6, 12});
  CHECK(shape_of(c, layers + "4.mixer.conv1d.weight") == Shape{30, 1, 2});
  CHECK(shape_of(c, layers + "4.mixer.in_proj.bias") == Shape{48});
  CHECK(shape_of(c, layers + "1.mixer.q_proj.weight") == Shape{16, 12});
  CHECK(shape_of(c, layers + "5.mixer.q_proj.weight") == Shape{15, 12});
  CHECK(shape_of(c, layers + "5.mixer.k_proj.weight") == Shape{5, 12});
  CHECK(shape_of(c, layers + "6.mixer.up_proj.weight") == Shape{9, 12});
  CHECK(shape_of(c, layers + "3.mixer.experts.up_proj") == Shape{6, 7, 7});
  CHECK(shape_of(c, layers + "7.mixer.experts.up_proj") == Shape{8, 4, 12});  // no latent width
  CHECK(shape_of(c, layers + "7.mixer.gate.e_score_correction_bias") == Shape{8});
  CHECK(shape_of(with_mtp(c, 1, false), "mtp.layers.1.mixer.experts.up_proj") == Shape{6, 7, 7});
}

TEST_CASE("own configs: which blocks have which sizes") {
  ModelConfig c = tiny_pruned_config();
  CHECK(&c.block(3) == &c.common());
  CHECK(c.block(7).moe.n_routed_experts == 8);
  CHECK(&c.of_tensor(named("backbone.layers.7.mixer.gate.weight")) == &c.block(7));
  CHECK(&c.of_tensor(named("backbone.layers.0.mixer.D")) == &c.common());
  CHECK(&c.of_tensor(named("lm_head.weight")) == &c.common());
  CHECK(&c.of_tensor(named("mtp.layers.0.mixer.q_proj.weight")) == &c.common());
  CHECK(ModelSetup(c).expert_counts() == std::vector<std::int64_t>{6, 8});
  CHECK(ModelSetup(c).most_experts() == 8);
  CHECK(with_mtp(c, 2, false).expert_counts() == std::vector<std::int64_t>{6, 8, 6, 6});
  std::string text;
  const ModelSetup setup(c);
  for (const BlockVariant& v : setup.variants())
    text += cat(v.kind, v.own ? cat("@", *v.own) : "", " ", v.count, "; ");
  CHECK(text == "mamba 1; mamba@4 1; attention 1; attention@5 1; mlp 1; mlp@6 1; moe 1; moe@7 1; ");
  // Common sizes that no block has are no variant, and are not checked.
  own_config(c, 3);
  c.moe.n_routed_experts = -1;
  CHECK_NOTHROW(c.validate());
  CHECK(ModelSetup(c).most_experts() == 8);
  CHECK(ModelSetup(tiny_config("M")).most_experts() == 0);
}

TEST_CASE("own configs: each is checked as the common one, and the message names the block") {
  using C = ModelConfig;
  CHECK(refusal([](C& c) { c.own_configs.at(7).moe.num_experts_per_tok = 5; }) ==
        "block 7: num_experts_per_tok: want at most 4 (topk_group 1 x 4 experts in a group), got 5");
  CHECK(refusal([](C& c) { c.own_configs.at(5).attention.num_attention_heads = 0; }) ==
        "block 5: num_attention_heads: want at least 1, got 0");
  CHECK(refusal([](C& c) {
          c.moe.num_experts_per_tok = 7;
        }).starts_with("num_experts_per_tok: want at most 6"));
  CHECK(refusal([](C& c) { c.own_configs.at(4).hidden_size = 16; }) ==
        "block 4: hidden_size: want 12 as for the whole model, got 16");
  CHECK(refusal([](C& c) {
          c.own_configs.at(4).layer_norm_epsilon = 0.5;
        }).starts_with("block 4: layer_norm_epsilon: want 1e-05 as for the whole model, got 0.5"));
  CHECK(refusal([](C& c) { own_config(c, 8); }) == "a config of block 8: want a block of 0 to 7");
}

TEST_CASE("own configs: a model whose blocks all have one has the bits of a model with these sizes") {
  ModelConfig uniform = tiny_config_with_all_tensors();
  uniform.moe.num_experts_per_tok = 3;
  const ModelConfig own = with_own_of_all(uniform);
  Stack a(uniform, DType::f32, Device::cpu), b(own, DType::f32, Device::cpu);
  for (const Initialisation law : {Initialisation::hf, Initialisation::megatron}) {
    initialise(a, 3, law);
    initialise(b, 3, law);
    for (std::size_t i = 0; i < a.parameters().all().size(); ++i)
      CHECK_BITS(a.parameters().all()[i].value, b.parameters().all()[i].value);
  }
  randomise(a, 3);
  randomise(b, 3);
  const TestBatch batch = random_batch(uniform, {9, 4}, 5);
  CHECK(loss_and_gradients(a, batch) == loss_and_gradients(b, batch));
  const auto got = gradients(b), want = gradients(a);
  for (std::size_t i = 0; i < want.size(); ++i)
    if (want[i].defined()) CHECK_BITS(got[i], want[i]);
  CHECK(training_flops_per_token(uniform, 9).total() ==
        doctest::Approx(training_flops_per_token(own, 9).total()));
}

TEST_CASE("own configs: operations are those of each block") {
  const ModelConfig c = tiny_pruned_config();
  double blocks = 0;
  for (std::int64_t i = 0; i < c.num_layers(); ++i) {
    ModelConfig one = tiny_config("M");
    static_cast<BlockConfig&>(one) = c.block(i);
    one.blocks = {c.blocks[static_cast<std::size_t>(i)]};
    blocks += forward_flops_per_token(one, 9).blocks;
  }
  CHECK(forward_flops_per_token(c, 9).blocks == doctest::Approx(blocks));
  // Frozen: without the gradients of the weights, 2 operations for each number of a matrix that a token
  // meets.
  ModelSetup frozen = c;
  frozen.choices.frozen = {mixer_name(7, "experts.up_proj")};
  CHECK(training_flops_per_token(c, 9).total() - training_flops_per_token(frozen, 9).total() ==
        doctest::Approx(2 * 3 * 4 * 12));
  // A block without a backward pass: the first ones, with all before them frozen.
  for (const TensorSpec& spec : tensor_specs(c))
    if (spec.name.find("embeddings") != spec.name.npos || spec.id.block_of_model().value_or(9) < 6)
      if (!spec.buffer) frozen.choices.frozen.insert(spec.id);
  double saved = 0;
  for (std::int64_t i = 0; i < 6; ++i)
    saved += 2 * forward_flops_per_token(c.blocks[static_cast<std::size_t>(i)], c.block(i), 9);
  CHECK(training_flops_per_token(c, 9).total() - training_flops_per_token(frozen, 9).total() ==
        doctest::Approx(saved + 2 * 3 * 4 * 12));
}

TEST_CASE("own configs: what blocks read of others is made before them") {
  tiny_gemma4_config().validate();
  const auto refusal = [](auto change) {
    ModelConfig config = tiny_gemma4_config();
    change(config);
    return message_of([&] { config.validate(); });
  };
  const auto kv_block = [&](std::int64_t block) {
    return refusal([&](ModelConfig& c) { c.own_configs.at(6).attention.kv_block = block; });
  };
  CHECK(kv_block(9).find("block 6 reads keys and values of block 9") != std::string::npos);
  CHECK(kv_block(1).find("want a block of attention before it") != std::string::npos);
  CHECK(kv_block(3).find("want the same sizes of heads") != std::string::npos);
  CHECK(refusal([](ModelConfig& c) { c.attention.kv_block = 0; }) != "");
  CHECK(refusal([](ModelConfig& c) {
          c.own_configs.at(2).per_layer_input.size = 6;
        }).find("block 2: hidden_size_per_layer_input: want 5") != std::string::npos);
  CHECK(refusal([](ModelConfig& c) {
          c.own_configs.at(4).residual = Residual::norm_before;
        }).find("norms of a mixture's own") != std::string::npos);
  CHECK(refusal([](ModelConfig& c) {
          own_config(c, 4).residual = Residual::norm_after;
          own_config(c, 5).residual = Residual::shared_norm;
        }).find("shares the norm of a block that has none") != std::string::npos);
}

TEST_CASE("own configs: side rows by their makers, and those that pass a block") {
  const ModelConfig config = tiny_gemma4_config();
  const auto made = side_rows_by_maker(config);
  REQUIRE(made.size() == 3);
  CHECK(made.at(SideRows::front).size() == 4);
  CHECK(made.at(0).size() == 2);
  CHECK(made.at(3).size() == 2);
  const auto widths = [&](std::int64_t block) {
    std::vector<std::int64_t> all;
    for (const SideRows& rows : config.side_rows_across(block)) all.push_back(rows.width);
    return all;
  };
  using Widths = std::vector<std::int64_t>;
  CHECK(widths(0) == Widths{5, 5, 5, 5});
  CHECK(widths(1) == Widths{5, 5, 5, 5, 8, 8});
  CHECK(widths(6) == Widths{5, 5, 8, 8, 8, 8});
  CHECK(widths(7) == Widths{5, 5, 8, 8});
  CHECK(widths(12).empty());
}
