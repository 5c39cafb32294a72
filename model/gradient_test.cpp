#include <doctest/doctest.h>

#include "model/test_gradients.h"
#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

// Central differences on a sample of the elements of every parameter.
void check_model_gradients(const ModelSetup& config, std::uint64_t seed) {
  Stack model(config, DType::f64, Device::cpu);
  randomise(model, seed);
  const TestBatch batch = random_batch(config, {7, 4}, seed + 1);
  loss_and_gradients(model, batch);
  // Only embeddings of ids that occur have gradients, so many elements of the embeddings are checked.
  check_parameter_gradients(
      model, [&] { return loss_only(model, batch); }, {.elements = 10, .first = seed},
      [](const Parameter& p) { return p.wants_grad(); });
}

}  // namespace

TEST_CASE("model: gradients of every parameter against central differences") {
  check_model_gradients(tiny_config("ME*-"), 31);
}

TEST_CASE("model: gradients with all biases, latent experts, routing groups and a time step limit") {
  ModelConfig c = tiny_config("E-M*");
  c.mamba.in_proj_bias = c.mamba.out_proj_bias = true;
  c.mlp.bias = c.moe.bias = true;
  c.moe.latent_size = 8;
  c.moe.n_group = 3;
  c.moe.topk_group = 2;
  c.moe.norm_topk_prob = false;
  c.mamba.time_step_limit_low = 0.01;
  c.mamba.time_step_limit_high = 2;
  check_model_gradients(c, 37);
}

TEST_CASE("model: gradients with a rotary embedding, biases of attention and gated MLPs") {
  ModelConfig config = tiny_llama_config();
  check_model_gradients(config, 38);
  config.mlp.gate = GateActivation::gelu_tanh;
  config.mlp.bias = config.attention.output_bias = false;
  config.attention.rope = {
      .type = RopeType::yarn, .rope_theta = 100, .factor = 4, .original_max_position_embeddings = 8};
  check_model_gradients(config, 40);
}

TEST_CASE("model: gradients of Gated DeltaNet, a gate behind attention and one of the shared expert") {
  check_model_gradients(tiny_delta_net_config(), 45);
}

TEST_CASE("model: gradients with gated experts and softmax routers, with and without a shared expert") {
  ModelConfig config = tiny_gated_experts_config();
  check_model_gradients(config, 43);
  config.moe.norm_topk_prob = false;
  own_config(config, 2).moe.gate = GateActivation::gelu_tanh;
  check_model_gradients(config, 44);
}

TEST_CASE("model: gradients with norms of heads, a window and a scale of queries by position") {
  for (const NormKind norm : {NormKind::rmsnorm, NormKind::rmsnorm_one_plus_w, NormKind::layernorm})
    check_model_gradients(tiny_windowed_config(norm), 41);
}

TEST_CASE("model: gradients of what Gemma 3, Phi and Baichuan have") {
  check_model_gradients(tiny_gemma_config(), 55);
  check_model_gradients(tiny_phi_config(), 56);
  check_model_gradients(tiny_baichuan_config(), 57);
  ModelConfig turned = tiny_baichuan_config();
  turned.attention.alibi = false;
  turned.attention.rope = {.type = RopeType::standard, .rope_theta = 100};
  check_model_gradients(turned, 58);
}

TEST_CASE(
    "model: gradients of per-layer inputs, shared keys and values, and a mixture with norms of its own") {
  check_model_gradients(tiny_gemma4_config(), 71);
  // Of keys and values alone, of which some are read by later layers, and of per-layer inputs alone.
  for (const char* only : {"k_proj", "per_layer_model_projection", "embed_tokens_per_layer"}) {
    ModelSetup setup(tiny_gemma4_config());
    for (const TensorSpec& spec : tensor_specs(setup))
      if (!spec.buffer && spec.name.find(only) == spec.name.npos) setup.choices.frozen.insert(spec.id);
    CAPTURE(only);
    check_model_gradients(setup, 72);
  }
}

TEST_CASE(
    "model: gradients with Mamba and attention on one norm, multipliers, and each place of Mamba's norm") {
  for (const MambaNorm norm : {MambaNorm::none, MambaNorm::before_gate, MambaNorm::after_gate})
    for (const bool biases : {false, true}) check_model_gradients(tiny_falcon_config(norm, biases), 60);
}

// In real arithmetic multipliers are factors of weights and biases, and the rows of a model are the same.
TEST_CASE("model: multipliers are factors of weights and biases") {
  for (const bool biases : {false, true}) {
    CAPTURE(biases);
    const ModelConfig config = tiny_falcon_config(MambaNorm::none, biases);
    ModelConfig plain = config;
    const auto without = [](BlockConfig& block) {
      block.mamba.multipliers = {};
      block.attention.input_multiplier = block.attention.key_multiplier = 1;
      block.attention.output_multiplier = block.mlp.gate_multiplier = block.mlp.output_multiplier = 1;
    };
    without(plain);
    for (auto& [number, own] : plain.own_configs) without(own);
    plain.embedding_scale = plain.logit_scale = 1;
    Stack scaled(config, DType::f64, Device::cpu), folded(plain, DType::f64, Device::cpu);
    randomise(scaled, 61);
    const auto& by = config.mamba.multipliers;
    const AttentionConfig& attention = config.attention;
    for (Parameter& p : folded.parameters().all()) {
      p.value.copy_from(scaled.parameters().get(p.id).value);
      const auto is = [&](std::string_view module) { return p.id.member.starts_with(module); };
      const bool bias = p.id.member.ends_with(".bias");
      const auto times = [](const Tensor& t, double factor) {
        std::vector<double> values = t.to_vector();
        for (double& v : values) v *= factor;
        t.copy_from(Tensor::from(values, t.shape()));
      };
      if (is("in_proj")) {
        const std::int64_t inner = config.mamba.inner(), states = config.mamba.state_width();
        std::int64_t first = 0;
        for (const auto& [rows, factor] : {std::pair{inner, by.z},
                                           {inner, by.x},
                                           {states, by.b},
                                           {states, by.c},
                                           {config.mamba.num_heads, by.dt}}) {
          times(p.value.narrow(0, first, rows), bias ? factor : factor * by.input);
          first += rows;
        }
      }
      const double in = bias ? 1 : attention.input_multiplier;
      if (is("q_proj") || is("v_proj")) times(p.value, in);
      if (is("k_proj")) times(p.value, in * attention.key_multiplier);
      if (is("o_proj")) times(p.value, attention.output_multiplier);
      if (is("out_proj")) times(p.value, by.output);
      if (is("gate_proj")) times(p.value, config.mlp.gate_multiplier);
      if (is("down_proj")) times(p.value, config.mlp.output_multiplier);
      if (p.id == embeddings_name() / "weight") times(p.value, config.embedding_scale);
      if (p.id == head_name() / "weight") times(p.value, config.logit_scale);
    }
    const TestBatch batch = random_batch(config, {7, 4}, 62);
    CHECK(relative_error(hidden_of(scaled, batch), hidden_of(folded, batch)) < 1e-13);
    CHECK(loss_only(scaled, batch) == doctest::Approx(loss_only(folded, batch)).epsilon(1e-13));
    const Tensor hidden = hidden_of(scaled, batch);
    CHECK(relative_error(scaled.logits(hidden), folded.logits(hidden)) < 1e-13);
  }
}

TEST_CASE("model: the scale of the embeddings is rounded to their dtype, or is not") {
  ModelConfig config = tiny_config("-");
  config.embedding_scale = 5.656854249492381;  // 5.65625 in bf16
  for (const bool round : {true, false}) {
    config.round_embedding_scale = round;
    Stack model(config, DType::bf16, Device::cpu);
    Tensor& weight = model.parameters().get(embeddings_name() / "weight").value;
    weight.fill(227);
    Context ctx;
    const TestBatch batch = random_batch(config, {3}, 1);
    const Tensor rows = (*model.front())(ctx, batch.ids, batch.sequences).value();
    for (const double v : rows.to_vector()) CHECK(v == (round ? 1280 : 1288));
  }
}

TEST_CASE("model: gradients of gated MLPs on the norm of another block") {
  ModelConfig config = tiny_llama_config();
  for (const std::int64_t mlp : {1, 3}) own_config(config, mlp).residual = Residual::shared_norm;
  check_model_gradients(config, 59);
}

TEST_CASE("model: gradients of linear layers in the place of mixers") {
  check_model_gradients(tiny_config("L*L"), 42);
}

TEST_CASE("model: gradients with a tied head: the embeddings have those of both ends") {
  ModelConfig config = tiny_config("M*-");
  config.tie_word_embeddings = true;
  check_model_gradients(config, 39);
  Stack tied(config, DType::f64, Device::cpu);
  CHECK_FALSE(tied.parameters().find(head_name() / "weight"));
  randomise(tied, 39);
  config.tie_word_embeddings = false;
  Stack apart(config, DType::f64, Device::cpu);
  for (Parameter& p : apart.parameters().all()) {
    const bool head = p.id == head_name() / "weight";
    p.value.copy_from(tied.parameters().get(head ? embeddings_name() / "weight" : p.id).value);
  }
  const TestBatch batch = random_batch(config, {7, 4}, 40);
  CHECK(loss_and_gradients(tied, batch) == loss_and_gradients(apart, batch));
  const auto gradient = [](Stack& model, const TensorName& module) {
    return model.parameters().get(module / "weight").node->grad().to_vector();
  };
  const std::vector<double> both = gradient(tied, embeddings_name()),
                            front = gradient(apart, embeddings_name()), head = gradient(apart, head_name());
  for (std::size_t i = 0; i < both.size(); ++i)
    CHECK(both[i] == doctest::Approx(front[i] + head[i]).epsilon(1e-12));
}

TEST_CASE("model: gradients with a norm behind each mixer, or behind that of one block") {
  ModelConfig config = tiny_config("M*-");
  own_config(config, 1).residual = Residual::norm_before_and_after;
  check_model_gradients(config, 43);
  const Stack one(config, DType::f64, Device::cpu);
  CHECK(one.parameters().find(block_name(1, "post_norm.weight")));
  CHECK_FALSE(one.parameters().find(block_name(0, "post_norm.weight")));
  config = tiny_config("E-");
  config.residual = Residual::norm_before_and_after;
  check_model_gradients(config, 45);
}

TEST_CASE("model: gradients of each kind of norm, whose weights begin as their formulas want") {
  for (const NormKind norm : {NormKind::rmsnorm_one_plus_w, NormKind::layernorm}) {
    ModelConfig config = tiny_config("M*-");
    config.norm = norm;
    own_config(config, 1).residual = Residual::norm_before_and_after;
    CAPTURE(static_cast<int>(norm));
    check_model_gradients(config, 49);
    Stack model(config, DType::f64, Device::cpu);
    initialise(model, 50);
    const bool from_zero = norm == NormKind::rmsnorm_one_plus_w;
    for (const TensorName& module : {block_name(0) / "norm", block_name(1) / post_norm, final_norm_name()}) {
      for (const double w : model.parameters().get(module / "weight").value.to_vector())
        CHECK(w == (from_zero ? 0 : 1));
      const Parameter* bias = model.parameters().find(module / "bias");
      CHECK((bias != nullptr) == (norm == NormKind::layernorm));
      if (bias)
        for (const double b : bias->value.to_vector()) CHECK(b == 0);
    }
  }
}

TEST_CASE("model: 1 + w is RMSNorm with that weight, and LayerNorm sees no constant that is added to a row") {
  ModelConfig config = tiny_config("-*");
  const TestBatch batch = random_batch(config, {7, 4}, 52);
  Stack plain(config, DType::f64, Device::cpu);
  randomise(plain, 51);
  config.norm = NormKind::rmsnorm_one_plus_w;
  Stack offset(config, DType::f64, Device::cpu);
  for (Parameter& p : offset.parameters().all()) {
    p.value.copy_from(plain.parameters().get(p.id).value);
    if (!p.id.member.ends_with("norm.weight")) continue;
    std::vector<double> less = p.value.to_vector();
    for (double& w : less) w -= 1;
    p.value.copy_from(Tensor::from(less, p.value.shape()));
  }
  CHECK(relative_error(hidden_of(offset, batch), hidden_of(plain, batch)) < 1e-14);

  config.norm = NormKind::layernorm;
  Stack centred(config, DType::f64, Device::cpu);
  randomise(centred, 51);
  const Tensor before = hidden_of(centred, batch).clone();
  Tensor& embeddings = centred.parameters().get(embeddings_name() / "weight").value;
  std::vector<double> shifted = embeddings.to_vector();
  for (double& e : shifted) e += 3;
  embeddings.copy_from(Tensor::from(shifted, embeddings.shape()));
  CHECK(relative_error(hidden_of(centred, batch), before) < 1e-12);
}

TEST_CASE("model: a norm is trained by its weight or by its bias") {
  ModelConfig config = tiny_config("M*");
  config.norm = NormKind::layernorm;
  ModelSetup setup(config);
  for (const TensorSpec& spec : tensor_specs(setup)) setup.choices.frozen.insert(spec.id);
  setup.choices.frozen.erase(block_name(1, "norm.bias"));
  check_model_gradients(setup, 53);
  ModelConfig other = config;
  own_config(other, 1).norm = NormKind::rmsnorm;
  CHECK_THROWS_WITH_AS(other.validate(), doctest::Contains("block 1: norm"), Error);
}

TEST_CASE("model: gradients of two mixers on one norm, whose outputs are added") {
  ModelConfig config = tiny_config("-M*-");
  own_config(config, 2).residual = Residual::shared_norm;
  check_model_gradients(config, 47);
  Stack beside(config, DType::f64, Device::cpu);
  CHECK_FALSE(beside.parameters().find(block_name(2, "norm.weight")));
  // Without what the first of both adds, the second has the rows that it has alone.
  ModelConfig without = config;
  without.blocks.erase(without.blocks.begin() + 1);
  without.own_configs.clear();
  Stack alone(without, DType::f64, Device::cpu);
  randomise(beside, 47);
  beside.parameters().get(mixer_name(1, "out_proj.weight")).value.zero();
  for (Parameter& p : alone.parameters().all()) {
    TensorName from = p.id;
    const bool norm = p.id.part == NamePart::block && p.id.block == 1;
    if (p.id.block_of_model().value_or(0) >= 1 && !norm) ++from.block;
    p.value.copy_from(beside.parameters().get(from).value);
  }
  const TestBatch batch = random_batch(config, {7, 4}, 48);
  CHECK(relative_error(hidden_of(beside, batch), hidden_of(alone, batch)) < 1e-14);
  ModelConfig first = config;
  own_config(first, 0).residual = Residual::shared_norm;
  CHECK_THROWS_WITH_AS(first.validate(), doctest::Contains("the first block"), Error);
}

TEST_CASE("model: gradients of several microbatches add up") {
  Stack model(tiny_config("ME*-"), DType::f64, Device::cpu);
  randomise(model, 41);
  const TestBatch a = random_batch(model.config(), {7}, 42), b = random_batch(model.config(), {5}, 43);
  loss_and_gradients(model, a, 0.5);
  const auto first = gradients(model);
  model.parameters().clear_gradients();
  loss_and_gradients(model, b, 0.25);
  const auto second = gradients(model);
  loss_and_gradients(model, a, 0.5);
  const auto both = gradients(model);
  for (std::size_t i = 0; i < both.size(); ++i) {
    if (!both[i].defined()) continue;
    CAPTURE(model.parameters().all()[i].name);
    const auto x = first[i].to_vector(), y = second[i].to_vector();
    std::vector<double> sum;
    for (std::size_t j = 0; j < x.size(); ++j) sum.push_back(x[j] + y[j]);
    CHECK_CLOSE(both[i], Tensor::from(sum, both[i].shape()), Tol({1e-13, 1e-13}));
  }
}
