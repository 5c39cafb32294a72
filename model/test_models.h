#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/rng.h"
#include "core/variants.h"
#include "model/initialise.h"
#include "model/mtp/rolled.h"
#include "model/stack.h"
#include "model/test_configs.h"
#include "model/test_gemma4.h"
#include "ops/view/view.h"
#include "tests/support/compare.h"

/// Small models and batches of the model's tests.
namespace nemocube::testing {

inline ModelConfig tiny_config(const char* pattern = "ME*-") {
  ModelConfig c = with_experts({pattern, 12, 4, 2, 14, 4, 3, 5, 4}, {6, 2, 7, 9});
  c.vocab_size = 23;
  c.attention.head_dim = 4;
  c.mamba.n_groups = 2;
  c.moe.routed_scaling_factor = 1.5;
  return c;
}

/// Every kind of block with every tensor that it may have.
inline ModelConfig tiny_config_with_all_tensors() {
  ModelConfig config = tiny_config("M*-E");
  config.moe.latent_size = 7;
  config.mlp.bias = config.moe.bias = config.mamba.in_proj_bias = config.mamba.out_proj_bias = true;
  return config;
}

/// Attention with a rotary embedding and biases, and gated MLPs, as in Llama.
inline ModelConfig tiny_llama_config() {
  ModelConfig config = tiny_config("*-*-");
  config.attention.qkv_bias = config.attention.output_bias = true;
  config.attention.rope = {
      .type = RopeType::llama3, .rope_theta = 100, .factor = 8, .original_max_position_embeddings = 32};
  config.mlp.gate = GateActivation::silu;
  config.mlp.bias = true;
  return config;
}

/// Gated DeltaNet, three value heads for each of two key heads; attention with a gate of each head's result;
/// experts beside a shared expert with a gate, as in Qwen 3.5.
inline ModelConfig tiny_delta_net_config() {
  ModelConfig config = tiny_config("D*ED-");
  config.norm = NormKind::rmsnorm_one_plus_w;
  // The norm behind the delta rule makes the first token's result nearly a sign where epsilon is small.
  config.layer_norm_epsilon = 0.1;
  config.gated_delta_net = {
      .num_key_heads = 2, .num_value_heads = 6, .key_head_dim = 3, .value_head_dim = 5, .conv_kernel = 3};
  config.attention.head_norm = NormKind::rmsnorm_one_plus_w;
  config.attention.output_gate = true;
  config.attention.rope = {.type = RopeType::standard, .rope_theta = 100, .partial_rotary_factor = 0.5};
  config.mlp.gate = config.moe.gate = GateActivation::silu;
  config.moe.scores = RouterScores::softmax;
  config.moe.correction_bias = config.moe.router_in_f32 = false;
  config.moe.shared_expert_gate = true;
  return config;
}

/// Gated experts behind a softmax router, the second block with a shared expert, as in Qwen 3's models.
inline ModelConfig tiny_gated_experts_config() {
  ModelConfig config = tiny_config("E*E");
  config.moe.gate = GateActivation::silu;
  config.moe.scores = RouterScores::softmax;
  config.moe.correction_bias = config.moe.router_in_f32 = false;
  config.moe.routed_scaling_factor = 1;
  own_config(config, 2).moe.bias = true;
  config.moe.shared_expert_intermediate_size = 0;
  return config;
}

/// Attention whose queries and keys have norms of this kind, whose queries grow with their position, and
/// which sees all keys in the first layer and the last three in the second.
inline ModelConfig tiny_windowed_config(NormKind head_norm) {
  ModelConfig config = tiny_config("*-*-");
  config.attention.rope = {.type = RopeType::standard, .rope_theta = 100};
  config.attention.head_norm = head_norm;
  config.attention.position_scale = {.beta = 0.4, .positions = 2};
  own_config(config, 2).attention.window = 3;
  config.mlp.gate = GateActivation::silu;
  return config;
}

/// Scaled embeddings, a scale of scores, norms behind mixers, and a soft cap of the logits of a tied head, as
/// in Gemma 3.
inline ModelConfig tiny_gemma_config() {
  ModelConfig config = tiny_windowed_config(NormKind::rmsnorm_one_plus_w);
  config.own_configs.clear();
  config.attention.position_scale = {};
  config.norm = NormKind::rmsnorm_one_plus_w;
  config.residual = Residual::norm_before_and_after;
  config.mlp.gate = GateActivation::gelu_tanh;
  config.attention.score_scale = 0.4;
  config.embedding_scale = 3.5;
  config.tie_word_embeddings = true;
  config.logit_softcap = 2;
  AttentionConfig& sliding = own_config(config, 2).attention;
  sliding.window = 3;
  sliding.rope.rope_theta = 20;
  return config;
}

/// Attention and MLP on one LayerNorm, half of each head turned, an MLP with a GELU and without a gate, and
/// biases everywhere, as in Phi.
inline ModelConfig tiny_phi_config() {
  ModelConfig config = tiny_config("*-*-");
  config.norm = NormKind::layernorm;
  config.attention.rope = {.type = RopeType::standard, .rope_theta = 100, .partial_rotary_factor = 0.5};
  config.attention.qkv_bias = config.attention.output_bias = config.mlp.bias = config.head_bias = true;
  config.mlp.activation = MlpActivation::gelu_tanh;
  for (const std::int64_t mlp : {1, 3}) own_config(config, mlp).residual = Residual::shared_norm;
  return config;
}

/// Queries, keys and values of one weight, slopes of scores, and a head of unit vectors, as in Baichuan.
inline ModelConfig tiny_baichuan_config() {
  ModelConfig config = tiny_config("*-");
  config.attention.num_attention_heads = config.attention.num_key_value_heads = 6;
  config.attention.packed = config.attention.alibi = true;
  config.mlp.gate = GateActivation::silu;
  config.normalized_head = true;
  config.z_loss_weight = 0.1;
  return config;
}

/// Mamba and attention on one norm, then a gated MLP, with multipliers everywhere, as in Falcon-H1.
inline ModelConfig tiny_falcon_config(MambaNorm norm, bool biases) {
  ModelConfig config = tiny_config("M*-M*-");
  config.mamba.norm = norm;
  config.mamba.multipliers = {
      .input = 0.75, .z = 1.2, .x = 1.6, .b = 1.8, .c = 1.7, .dt = 1.5, .output = 1.9};
  config.mamba.in_proj_bias = config.mamba.out_proj_bias = biases;
  config.attention.qkv_bias = config.attention.output_bias = config.mlp.bias = biases;
  config.attention.rope = {.type = RopeType::standard, .rope_theta = 100};
  config.attention.input_multiplier = 0.6, config.attention.key_multiplier = 1.375;
  config.attention.output_multiplier = 0.625;
  config.mlp.gate = GateActivation::silu;
  config.mlp.gate_multiplier = 0.875, config.mlp.output_multiplier = 1.125;
  config.embedding_scale = 2, config.logit_scale = 0.7;
  for (const std::int64_t attention : {1, 4}) own_config(config, attention).residual = Residual::shared_norm;
  return config;
}

/// Two blocks of each kind, of which the second has sizes of its own.
inline ModelConfig tiny_pruned_config() {
  ModelConfig config = tiny_config("M*-EM*-E");
  config.moe.latent_size = 7;
  BlockConfig& mamba = own_config(config, 4);
  mamba.mamba.num_heads = 6, mamba.mamba.head_dim = 2, mamba.mamba.n_groups = 3,
  mamba.mamba.ssm_state_size = 3;
  mamba.mamba.conv_kernel = 2, mamba.mamba.chunk_size = 3,
  mamba.mamba.in_proj_bias = mamba.mamba.out_proj_bias = true;
  BlockConfig& attention = own_config(config, 5);
  attention.attention.num_attention_heads = 3, attention.attention.num_key_value_heads = 1,
  attention.attention.head_dim = 5;
  BlockConfig& mlp = own_config(config, 6);
  mlp.mlp.intermediate_size = 9, mlp.mlp.bias = mlp.moe.bias = true;
  BlockConfig& moe = own_config(config, 7);
  moe.moe.n_routed_experts = 8, moe.moe.num_experts_per_tok = 3, moe.moe.intermediate_size = 4;
  moe.moe.shared_expert_intermediate_size = 5, moe.moe.latent_size = 0, moe.moe.n_group = 2;
  moe.moe.routed_scaling_factor = 0.5, moe.moe.norm_topk_prob = false;
  return config;
}

/// Adapters of all weights that can have one and that chosen(text of the module) takes, with ranks and scales
/// that differ.
template <class Chosen>
ModelSetup with_adapters(ModelSetup setup, Chosen&& chosen) {
  std::int64_t count = 0;
  for (const TensorSpec& spec : tensor_specs(setup))
    if (const TensorName module = spec.id.module(); spec.linear && chosen(setup.config.text(module))) {
      ++count;
      setup.choices.lora.modules[module] = {.rank = 1 + count % 3,
                                            .alpha = 0.5 + 0.25 * static_cast<double>(count % 5),
                                            .rank_stabilised = count % 2 == 0};
    }
  return setup;
}
inline ModelSetup with_adapters(const ModelSetup& setup) {
  return with_adapters(setup, [](const std::string&) { return true; });
}

/// Nothing but adapters is trained.
inline ModelSetup frozen_base(ModelSetup setup) {
  for (const TensorSpec& spec : tensor_specs(setup))
    if (!spec.buffer && spec.factor == LoraFactor::none) setup.choices.frozen.insert(spec.id);
  return setup;
}

/// Fresh weights, chosen so that every part of the model affects the result: matrices scaled to keep
/// activations near 1, norm weights away from 1, correction biases away from 0.
inline void randomise(Stack& model, std::uint64_t seed) {
  initialise(model, seed);
  for (Parameter& p : model.parameters().all()) {
    const bool matrix = p.value.ndim() >= 2 && !p.name.ends_with("conv1d.weight");
    const bool norm =
        p.name.ends_with("norm.weight") || p.name.ends_with("norm_f.weight") || p.name.ends_with(".D");
    if (matrix)
      fill_normal(p.value, RandomStream(seed, p.name + "/test"), 0, 0.4);
    else if (norm || p.name.ends_with("scale") || p.id.member == layer_scalar)
      fill_normal(p.value, RandomStream(seed, p.name + "/test"), 1, 0.2);
    else if (p.name.ends_with("e_score_correction_bias") || p.name.ends_with(".bias"))
      fill_normal(p.value, RandomStream(seed, p.name + "/test"), 0, 0.1);
  }
}

/// Sets the local weights of `to` from those of a whole model.
inline void copy_weights(Stack& to, const Stack& from) {
  for (Parameter& p : to.parameters().all()) {
    const Parameter& whole = *std::ranges::find(from.parameters().all(), p.name, &Parameter::name);
    const auto values = whole.value.to_vector();
    std::vector<double> own(static_cast<std::size_t>(p.shard.numel()));
    p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
      std::copy_n(values.begin() + global, count, own.begin() + local);
    });
    p.value.copy_from(Tensor::from(own, p.value.shape()));
  }
}

/// Ids of `count` tokens.
inline Tensor random_ids(const ModelSetup& setup, std::int64_t count, std::uint64_t seed) {
  const RandomStream stream(seed, "ids");
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int64_t>(
        stream.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(setup.config.vocab_size))));
  return Tensor::from(ids, {count});
}

/// Labels of `count` tokens; every third token has none (-100).
inline Tensor random_labels(const ModelSetup& setup, std::int64_t count, std::uint64_t seed) {
  Tensor labels = random_ids(setup, count, seed + 1000);
  for (std::int64_t i = 2; i < count; i += 3) labels.data<std::int64_t>()[i] = -100;
  return labels;
}

struct TestBatch {
  Tensor ids, labels;
  Sequences sequences;
};
inline TestBatch random_batch(const ModelSetup& setup, std::vector<std::int64_t> lengths,
                              std::uint64_t seed) {
  TestBatch b;
  b.sequences = Sequences::of_lengths(lengths);
  b.ids = random_ids(setup, b.sequences.tokens(), seed);
  b.labels = random_labels(setup, b.sequences.tokens(), seed);
  return b;
}
/// Sequence i of a batch.
inline TestBatch part(const TestBatch& batch, std::int64_t i) {
  const std::int64_t begin = batch.sequences.begin(i), length = batch.sequences.length(i);
  return {batch.ids.narrow(0, begin, length).clone(), batch.labels.narrow(0, begin, length).clone(),
          Sequences::uniform(1, length)};
}

/// Sum of token losses. Adds the gradients of `scale` times the sum to the gradients of the parameters.
inline double loss_and_gradients(Stack& model, const TestBatch& b, double scale = 1,
                                 const KernelChoice* kernels = nullptr, BlockRecords* records = nullptr) {
  Tape tape;
  Context ctx{.tape = &tape, .kernels = kernels};
  BlockRecords own = model.make_records();
  const ForwardInput input{.ids = b.ids, .residual = {}, .sequences = b.sequences, .records = &own};
  const Var loss = model.loss(ctx, model.forward(ctx, input), b.labels, b.sequences, scale);
  tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), Device::cpu));
  if (records) *records = std::move(own);
  return loss.value().to_vector()[0];
}
inline double loss_only(Stack& model, const TestBatch& b) {
  Context ctx;
  return model.loss(ctx, model.hidden(ctx, b.ids, b.sequences), b.labels, b.sequences, 1)
      .value()
      .to_vector()[0];
}

/// The model with this multi-token prediction, of blocks "*E".
inline ModelSetup with_mtp(ModelSetup setup, std::int64_t depths, bool repeated, double beta = 0.3) {
  setup.train_mtp({depths, repeated, beta});
  return setup;
}

/// Sums of token losses: of the model, then of each depth of multi-token prediction. On the device of the
/// model, whose gradients get those of `scale` (L_0 + beta / D sum_k L_k).
inline std::vector<double> mtp_losses(Stack& model, const TestBatch& b, double scale = 1,
                                      bool backward = true) {
  const MtpTraining& mtp = model.choices().mtp;
  const Device device = model.device();
  Tape tape;
  Context ctx{.tape = backward ? &tape : nullptr};
  BlockRecords records = model.make_records(), of_mtp = model.make_mtp_records();
  const Var hidden = model.forward(
      ctx, {.ids = b.ids.to(device), .residual = {}, .sequences = b.sequences, .records = &records});
  std::vector<Tensor> ids;
  std::vector<Labels> labels{Labels(b.labels).to(device)};
  for (std::int64_t k = 1; k <= mtp.depths; ++k) {
    ids.push_back(rolled(b.ids, b.sequences, k, 0).to(device));
    labels.push_back(Labels(rolled(b.labels, b.sequences, k, ignored_label)).to(device));
  }
  std::vector<Var> states =
      model.predict_ahead(ctx, hidden, {.ids = ids, .sequences = b.sequences, .records = &of_mtp});
  states.insert(states.begin(), hidden);
  std::vector<double> losses;
  Var sum;
  for (std::size_t k = 0; k < states.size(); ++k) {
    const double factor = k == 0 ? 1 : mtp.scaling_factor / static_cast<double>(mtp.depths);
    const Var loss = model.loss(ctx, states[k], labels[k], b.sequences, scale * factor);
    losses.push_back(loss.value().to_vector()[0]);
    sum = sum.defined() ? add(ctx, sum, loss) : loss;
  }
  if (backward) tape.backward(sum, Tensor::scalar(1, sum.value().dtype(), device));
  return losses;
}

/// Copies of all gradients in the order of the parameters; an undefined tensor where there is none.
inline std::vector<Tensor> gradients(const Stack& model) {
  std::vector<Tensor> all;
  for (const Parameter& p : model.parameters().all())
    all.push_back(p.node && p.node->filled() ? p.node->grad().clone() : Tensor());
  return all;
}

inline Tensor hidden_of(Stack& model, const TestBatch& b) {
  Context ctx;
  return model.hidden(ctx, b.ids, b.sequences).value();
}

/// The largest ||got - want|| / ||want|| of a single gradient, and the parameter's name.
struct GradientError {
  double worst = 0;
  std::string name;
};
inline GradientError gradient_error(const Stack& model, const std::vector<Tensor>& got,
                                    const std::vector<Tensor>& want) {
  GradientError e;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i].defined() != want[i].defined())
      return {1e300, model.parameters().all()[i].name + " (missing)"};
    if (!want[i].defined()) continue;
    const double error = relative_error(got[i], want[i]);
    if (!(error <= e.worst)) e = {error, model.parameters().all()[i].name};
  }
  return e;
}

/// The batch as in training: sequence i has the numbers from `first` + i 2^32 on.
inline TestBatch numbered(TestBatch batch, std::int64_t first, std::int64_t padded_length = 16) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < batch.sequences.count(); ++i) numbers.push_back(first + (i << 32));
  batch.sequences = batch.sequences.numbered(numbers, padded_length);
  return batch;
}

}  // namespace nemocube::testing
