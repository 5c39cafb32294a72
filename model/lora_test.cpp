#include "model/lora.h"

#include <doctest/doctest.h>

#include <map>

#include "model/block_passes.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/mamba/mamba_block.h"
#include "model/blocks/mlp/mlp_block.h"
#include "model/blocks/moe/moe_block.h"
#include "model/flops.h"
#include "model/test_gradients.h"
#include "model/test_models.h"
#include "ops/matmul/matmul.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelSetup with_adapters_of(const ModelSetup& config, const char* part) {
  return with_adapters(config, [part](const std::string& m) { return m.find(part) != m.npos; });
}

ModelSetup with_dropout(ModelSetup config, DropoutPosition position, double probability = 0.4) {
  config.choices.lora.dropout = probability;
  config.choices.lora.dropout_position = position;
  config.choices.lora.dropout_seed = 5;
  return config;
}

ModelSetup base_of(ModelSetup config) {
  config.choices.lora = {};
  config.choices.frozen.clear();
  return config;
}

bool is_adapter(const Parameter& p) { return p.name.find(".lora_") != p.name.npos; }

struct Model {
  Model(const ModelSetup& config, DType dtype, std::uint64_t seed) : model(config, dtype, Device::cpu) {
    randomise(model, seed);
  }
  Stack model;
};

void check_adapter_gradients(const ModelSetup& config, const TestBatch& batch) {
  Model made(config, DType::f64, 61);
  Stack& model = made.model;
  loss_and_gradients(model, batch);
  const std::size_t checked = check_parameter_gradients(
      model, [&] { return loss_only(model, batch); }, {.elements = 8, .first = 3, .least = 1e-4}, is_adapter);
  CHECK(checked == 2 * config.choices.lora.modules.size());
}

/// W + s B A, for each matrix of a stack.
std::vector<double> merged(const Tensor& w, const Tensor& a, const Tensor& b, double scale) {
  const std::int64_t in = a.dim(-1), rank = a.dim(a.ndim() - 2), out = b.dim(b.ndim() - 2);
  const auto av = a.to_vector(), bv = b.to_vector();
  std::vector<double> sum = w.to_vector();
  for (std::int64_t e = 0; e < w.numel() / (in * out); ++e)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i)
        for (std::int64_t k = 0; k < rank; ++k)
          sum[static_cast<std::size_t>((e * out + o) * in + i)] +=
              scale * bv[static_cast<std::size_t>((e * out + o) * rank + k)] *
              av[static_cast<std::size_t>((e * rank + k) * in + i)];
  return sum;
}

Tensor weight_of(const Stack& model, const TensorName& module) {
  for (const TensorName& name : {module / "weight", module})
    if (const Parameter* p = model.parameters().find(name)) return p->value;
  FAIL("no weight of ", module.member);
  return {};
}

/// Gives a model without adapters the weights of one with adapters, merged.
void merge(Stack& to, const Stack& from) {
  copy_weights(to, from);
  for (const auto& [module, adapter] : from.choices().lora.modules) {
    const Tensor w = weight_of(to, module);
    w.copy_from(Tensor::from(merged(w, from.parameters().find(module / lora_a_weight)->value,
                                    from.parameters().find(module / lora_b_weight)->value, adapter.scale()),
                             w.shape()));
  }
}

/// Loss and gradients, by name.
std::pair<double, std::map<std::string, Tensor>> run(Stack& model, const TestBatch& batch) {
  model.parameters().clear_gradients();
  std::pair<double, std::map<std::string, Tensor>> result;
  result.first = loss_and_gradients(model, batch);
  for (const Parameter& p : model.parameters().all())
    if (p.node && p.node->filled()) result.second.emplace(p.name, p.node->grad().clone());
  return result;
}

}  // namespace

TEST_CASE("adapters: gradients of A and B of every module against central differences") {
  const TestBatch batch = random_batch(tiny_config(), {7, 4}, 62);
  for (const ModelConfig& config : {tiny_config("ME*-"), tiny_config_with_all_tensors()}) {
    check_adapter_gradients(with_adapters(config), batch);
    check_adapter_gradients(frozen_base(with_adapters(config)), batch);
  }
}

TEST_CASE("adapters: gradients with dropout against central differences") {
  const ModelSetup config = frozen_base(with_adapters(tiny_config_with_all_tensors()));
  const TestBatch batch = numbered(random_batch(config, {7, 4}, 62), std::int64_t{3} << 40);
  for (const DropoutPosition position : {DropoutPosition::pre, DropoutPosition::post})
    check_adapter_gradients(with_dropout(config, position, 0.25), batch);
}

TEST_CASE("adapters: a fresh one changes no bit") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const LoraInitialisation law : {LoraInitialisation::xavier, LoraInitialisation::kaiming}) {
      CAPTURE(dtype);
      ModelSetup config = with_adapters(tiny_config_with_all_tensors());
      config.choices.lora.initialisation = law;
      Stack adapted(config, dtype, Device::cpu), base(base_of(config), dtype, Device::cpu);
      randomise(adapted, 63);
      for (Parameter& p : adapted.parameters().all())
        if (is_adapter(p)) initialise(p, config.config, 63, Initialisation::hf);
      for (const Parameter& p : adapted.parameters().all()) {
        if (!is_adapter(p)) continue;
        const bool is_b = p.name.ends_with("lora_B.weight");
        CHECK((relative_error(p.value, Tensor::zeros(p.value.shape(), dtype, Device::cpu)) == 0) == is_b);
      }
      copy_weights(base, adapted);
      const TestBatch batch = random_batch(config, {9, 2, 5}, 64);
      const Tensor hidden = hidden_of(adapted, batch);
      CHECK_BITS(hidden, hidden_of(base, batch));
      CHECK_BITS(adapted.logits(hidden), base.logits(hidden));
      CHECK(loss_only(adapted, batch) == loss_only(base, batch));
      // B is zero, and so is the gradient of A; that of B is not.
      for (const auto& [name, gradient] : run(adapted, batch).second) {
        CAPTURE(name);
        const double size =
            relative_error(gradient, Tensor::zeros(gradient.shape(), gradient.dtype(), Device::cpu));
        if (name.ends_with("lora_A.weight")) CHECK(size == 0);
        if (name.ends_with("lora_B.weight")) CHECK(size > 0);
      }
    }
}

TEST_CASE("adapters: merged weights give the same hidden states, logits and losses") {
  for (const ModelConfig& config : {tiny_config("ME*-"), tiny_config_with_all_tensors()}) {
    Model adapted(with_adapters(config), DType::f64, 65), base(config, DType::f64, 65);
    const TestBatch batch = random_batch(config, {9, 2, 5}, 66);
    const Tensor hidden = hidden_of(adapted.model, batch), plain = hidden_of(base.model, batch);
    CHECK(relative_error(hidden, plain) > 1e-2);  // the adapters count
    merge(base.model, adapted.model);
    CHECK(relative_error(hidden_of(base.model, batch), hidden) < 1e-12);
    CHECK(relative_error(base.model.logits(hidden), adapted.model.logits(hidden)) < 1e-12);
    CHECK(loss_only(base.model, batch) == doctest::Approx(loss_only(adapted.model, batch)).epsilon(1e-12));
    CHECK(run(base.model, batch).first == doctest::Approx(run(adapted.model, batch).first).epsilon(1e-12));
  }
}

TEST_CASE("adapters: of a frozen base no gradient exists") {
  const ModelSetup config = frozen_base(with_adapters(tiny_config_with_all_tensors()));
  Model made(config, DType::f32, 67);
  const TestBatch batch = random_batch(config, {9, 5}, 68);
  for (const bool checkpointing : {false, true}) {
    made.model.activation_checkpointing = checkpointing;
    run(made.model, batch);
    for (const Parameter& p : made.model.parameters().all()) {
      CAPTURE(p.name);
      CHECK(p.wants_grad() == is_adapter(p));
      if (p.node) CHECK(p.node->filled() == is_adapter(p));
    }
  }
  CHECK(made.model.parameters().trainable_count() == count_tensors(tensor_specs(config)).trained());
}

TEST_CASE(
    "adapters: dropout drops the same elements in a replay, others in another step, none without numbers") {
  for (const DropoutPosition position : {DropoutPosition::pre, DropoutPosition::post}) {
    const ModelSetup plain = frozen_base(with_adapters(tiny_config_with_all_tensors())),
                     config = with_dropout(plain, position);
    Model made(config, DType::f32, 69), without(plain, DType::f32, 69);
    Stack& model = made.model;
    const TestBatch batch = random_batch(config, {9, 5}, 70), first = numbered(batch, 0),
                    later = numbered(batch, std::int64_t{2} << 32);
    const auto want = run(model, first);
    CHECK(want.first != run(without.model, first).first);
    CHECK(run(model, first).first == want.first);
    CHECK(run(model, later).first != want.first);
    CHECK(loss_only(model, batch) == loss_only(without.model, batch));  // evaluation
    model.activation_checkpointing = true;
    const auto replayed = run(model, first);
    CHECK(replayed.first == want.first);
    REQUIRE(replayed.second.size() == want.second.size());
    for (const auto& [name, gradient] : want.second) {
      CAPTURE(name);
      CHECK_BITS(replayed.second.at(name), gradient);
    }
    ModelSetup other = config;
    other.choices.lora.dropout_seed = 6;
    Model reseeded(other, DType::f32, 69);
    CHECK(run(reseeded.model, first).first != want.first);
  }
}

TEST_CASE("adapters: dropout of a row does not depend on the rows beside it") {
  const ModelSetup config =
      with_dropout(with_adapters(tiny_config_with_all_tensors()), DropoutPosition::post);
  Model made(config, DType::f64, 71);
  const TestBatch both = numbered(random_batch(config, {9, 5}, 72), 0);
  double sum = 0;
  for (const std::int64_t i : {0, 1}) {
    TestBatch one = part(both, i);
    one.sequences = one.sequences.numbered({both.sequences.numbers()[static_cast<std::size_t>(i)]});
    sum += loss_only(made.model, one);
  }
  CHECK(loss_only(made.model, both) == doctest::Approx(sum).epsilon(1e-12));
}

TEST_CASE("adapters: every module drops elements of its own, and routed experts drop none") {
  const ModelSetup config =
      with_dropout(with_adapters(tiny_config_with_all_tensors()), DropoutPosition::post);
  Model made(config, DType::f32, 73);
  const Sequences sequences = Sequences::uniform(1, 3).numbered({40});
  std::set<std::uint32_t> draws;
  for (const auto& [module, adapter] : config.choices.lora.modules) {
    const Adapter built(config, made.model.parameters(), module);
    REQUIRE(static_cast<bool>(built));
    const LoraBranch branch = built.branch(sequences, Device::cpu);
    CHECK(branch.scale == adapter.scale());
    CHECK(branch.dropout.probability == 0.4);
    CHECK(branch.dropout.row_numbers.to_vector() == std::vector<double>{40, 41, 42});
    draws.insert(RandomTable(*branch.dropout.stream).bits(40, 0));
    CHECK(built.branch().dropout.probability == 0);
  }
  CHECK(draws.size() == config.choices.lora.modules.size());
  CHECK_FALSE(static_cast<bool>(Adapter(base_of(config), made.model.parameters(), head_name())));

  for (const char* chosen : {".mixer.experts.", "lm_head", "q_proj"}) {
    CAPTURE(chosen);
    const ModelSetup some =
        with_dropout(with_adapters_of(tiny_config_with_all_tensors(), chosen), DropoutPosition::post);
    Model one(some, DType::f32, 74);
    const TestBatch batch = random_batch(some, {9, 5}, 75);
    const bool drops = loss_only(one.model, numbered(batch, 0)) != loss_only(one.model, batch);
    CHECK(drops == (chosen != std::string(".mixer.experts.")));
  }
}

TEST_CASE("adapters: of f32 in a bf16 model, rounded for products alone") {
  ModelSetup narrow = frozen_base(with_adapters(tiny_config_with_all_tensors())), wide = narrow;
  wide.choices.lora.f32 = true;
  Model a(narrow, DType::bf16, 76), b(wide, DType::bf16, 77);
  for (Parameter& p : b.model.parameters().all()) {
    CAPTURE(p.name);
    const Parameter& rounded = a.model.parameters().get(p.name);
    if (is_adapter(p)) {
      CHECK(p.value.dtype() == DType::f32);
      CHECK(rounded.value.dtype() == DType::bf16);
      rounded.value.copy_from(p.value.to(DType::bf16));
    } else {
      CHECK(p.value.dtype() == rounded.value.dtype());
      p.value.copy_from(rounded.value);
    }
  }
  const TestBatch batch = random_batch(wide, {9, 5}, 78);
  const auto got = run(b.model, batch), want = run(a.model, batch);
  CHECK(got.first == want.first);
  REQUIRE(got.second.size() == want.second.size());
  for (const auto& [name, gradient] : want.second) {
    CAPTURE(name);
    CHECK(got.second.at(name).dtype() == DType::f32);
    CHECK_BITS(got.second.at(name), gradient);
  }
  const Tensor hidden = hidden_of(b.model, batch);
  CHECK_BITS(hidden, hidden_of(a.model, batch));
  CHECK_BITS(b.model.logits(hidden), a.model.logits(hidden));
}

namespace {

/// Notes of which blocks there are backward passes.
struct Passes final : BlockHooks {
  std::map<std::int64_t, int> forward, backward, written;
  void before_forward(std::int64_t block) override { ++forward[block]; }
  void after_forward(std::int64_t) override {}
  void before_backward(std::int64_t block) override { ++backward[block]; }
  void after_backward(std::int64_t) override {}
  void gradients_written(std::int64_t block) override { ++written[block]; }
};

std::vector<std::pair<bool, bool>> passes_of(const ModelSetup& config) {
  std::vector<std::pair<bool, bool>> all;
  for (const BlockPass& pass : block_passes(config, ModelChunk{}))
    all.emplace_back(pass.backward, pass.input_gradient);
  return all;
}

}  // namespace

TEST_CASE(
    "adapters: the first adapted block forms no gradient of its input, and those before have no backward "
    "pass") {
  using Expected = std::vector<std::pair<bool, bool>>;
  constexpr std::pair<bool, bool> none{false, false}, first{true, false}, all{true, true};
  const auto of = [](const char* part) { return frozen_base(with_adapters_of(tiny_config("ME*-"), part)); };
  CHECK(passes_of(of("in_proj")) == Expected{first, all, all, all, all});
  CHECK(passes_of(of(".experts.down_proj")) == Expected{none, first, all, all, all});
  CHECK(passes_of(of("q_proj")) == Expected{none, none, first, all, all});
  CHECK(passes_of(of("layers.3")) == Expected{none, none, none, first, all});
  CHECK(passes_of(of("lm_head")) == Expected{none, none, none, none, none});
  CHECK(passes_of(with_adapters_of(tiny_config("ME*-"), "q_proj")) == Expected{all, all, all, all, all});
  ModelSetup some_frozen = of("_proj");  // adapters that are frozen themselves
  for (const TensorSpec& spec : tensor_specs(some_frozen))
    if (spec.id.block_of_model().value_or(9) < 2 && !spec.buffer) some_frozen.choices.frozen.insert(spec.id);
  CHECK(passes_of(some_frozen) == Expected{none, none, first, all, all});

  for (const char* part : {"in_proj", ".experts.down_proj", "q_proj", "layers.3", "lm_head"}) {
    CAPTURE(part);
    const ModelSetup config = of(part);
    Model made(config, DType::f64, 79);
    Passes passes;
    made.model.hooks = &passes;
    run(made.model, random_batch(config, {9, 5}, 80));
    const auto want = passes_of(config);
    for (std::int64_t i = 0; i < 4; ++i) {
      CAPTURE(i);
      CHECK(passes.forward[i] == 1);
      CHECK(passes.backward[i] == want[static_cast<std::size_t>(i)].first);
      CHECK(passes.written[i] == want[static_cast<std::size_t>(i)].first);
    }
    check_adapter_gradients(config, random_batch(config, {7, 4}, 62));
  }
}

TEST_CASE("adapters: operations of a small model counted by hand") {
  ModelSetup c = with_experts({"M*-E", 10, 3, 1, 7, 2, 6, 5, 8}, {16, 2, 11, 13, 6});
  c.config.vocab_size = 50;
  c.config.attention.head_dim = 4;
  c.config.mamba.n_groups = 1;
  const ForwardFlops base = forward_flops_per_token(c, 9);
  const auto of = [&](BlockKind kind) { return forward_flops_per_token(kind, c.config, 9); };
  c.choices.lora.modules = {{named("backbone.layers.1.mixer.q_proj"), {.rank = 3}},
                            {named("backbone.layers.3.mixer.experts.up_proj"), {.rank = 2}},
                            {named("lm_head"), {.rank = 5}}};
  // A token goes through two of the sixteen experts.
  const double q = 2 * 3 * (10 + 12), experts = 2 * 2 * 2 * (6 + 11), head = 2 * 5 * (10 + 50);
  const ForwardFlops forward = forward_flops_per_token(c, 9), all = training_flops_per_token(c, 9);
  CHECK(forward.blocks == base.blocks + q + experts);
  CHECK(forward.head == base.head + head);
  CHECK(all.blocks == 3 * forward.blocks);
  CHECK(all.head == 3 * forward.head);

  // The Mamba block has a forward pass alone; frozen weights have no gradients.
  const ForwardFlops peft = training_flops_per_token(frozen_base(c), 9);
  const double attention_weights = 2 * 10 * (12 + 4 + 4) + 2 * 12 * 10;
  CHECK(peft.blocks == of(mamba_block) + 3 * of(attention_block) - attention_weights + 2 * of(mlp_block) +
                           2 * of(moe_block) + 3 * (q + experts));
  CHECK(peft.head == 2 * base.head + 3 * head);

  // Of lm_head alone: B^T g is formed for A, but no gradient of what enters.
  c.choices.lora.modules.erase(named("backbone.layers.1.mixer.q_proj"));
  c.choices.lora.modules.erase(named("backbone.layers.3.mixer.experts.up_proj"));
  const ForwardFlops alone = training_flops_per_token(frozen_base(c), 9);
  CHECK(alone.blocks == base.blocks);
  CHECK(alone.head == base.head + 3 * head - 2 * 5 * 10);
}

TEST_CASE("adapters: operations of products are as many as are counted for lm_head") {
  ModelSetup config = with_adapters_of(tiny_config("-"), "lm_head");
  config.config.vocab_size = 64;
  config = frozen_base(config);
  Model made(config, DType::f32, 81);
  TestBatch batch = random_batch(config, {32}, 82);
  for (std::int64_t i = 0; i < 32; ++i) batch.labels.data<std::int64_t>()[i] = i;
  run(made.model, batch);
  reset_matmul_flops();
  run(made.model, batch);
  CHECK(matmul_flops() == 32 * training_flops_per_token(config, 32).total());
}

TEST_CASE("adapters: configs that no model can have are refused") {
  const auto refused = [](const char* module, const LoraModule& adapter, double dropout = 0) {
    ModelSetup config = tiny_config();
    config.choices.lora.modules[named(module)] = adapter;
    config.choices.lora.dropout = dropout;
    return message_of([&] { config.validate(); });
  };
  CHECK(refused("lm_head", {}) == "no error");
  CHECK(refused("backbone.layers.0.mixer.conv1d", {}) ==
        "low-rank adapters: the model has no linear layer 'backbone.layers.0.mixer.conv1d'");
  CHECK(refused("backbone.layers.1.mixer.gate", {}).starts_with("low-rank adapters: the model has no"));
  CHECK(refused("lm_head", {.rank = 0}).find("rank of 'lm_head'") != std::string::npos);
  CHECK(refused("lm_head", {.alpha = std::nan("")}).find("alpha of 'lm_head'") != std::string::npos);
  CHECK(refused("lm_head", {}, 1).find("dropout: want a probability") != std::string::npos);
}
