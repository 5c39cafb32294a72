#include <doctest/doctest.h>

#include <array>
#include <set>

#include "model/test_models.h"
#include "ops/view/view.h"

using namespace nemocube;
using namespace nemocube::testing;

// What parallelism takes hold of: parts of the model, hooks around blocks, transforms, local weights.

namespace {

ModelConfig with_biases() {
  ModelConfig config = tiny_config("ME*-ME");
  config.mamba.in_proj_bias = config.mamba.out_proj_bias = config.mlp.bias = config.moe.bias = true;
  config.moe.latent_size = 7;
  return config;
}

/// Stages between these cuts, one after another, have loss and gradients of the whole.
void check_stages(const ModelConfig& config, const std::vector<std::int64_t>& cuts) {
  Stack whole(config, DType::f64, Device::cpu);
  randomise(whole, 31);
  for (MoeMixer* moe : whole.moe_layers()) moe->router().aux_loss_coef = 0.1;
  const TestBatch batch = random_batch(whole.config(), {9, 5}, 32);
  const double want = loss_and_gradients(whole, batch);

  std::vector<std::unique_ptr<Stack>> stages;
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    ModelPart part{{{cuts[s], cuts[s + 1], s == 0, s + 2 == cuts.size()}}, {}};
    stages.push_back(std::make_unique<Stack>(whole.setup(), DType::f64, Device::cpu, part));
    copy_weights(*stages.back(), whole);
    for (MoeMixer* moe : stages.back()->moe_layers()) moe->router().aux_loss_coef = 0.1;
  }
  std::vector<Tape> tapes(stages.size());
  std::vector<BlockRecords> records;
  std::vector<Var> in(stages.size()), out(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Context ctx{.tape = &tapes[s]};
    records.push_back(stages[s]->make_records());
    if (s > 0) in[s] = make_result(out[s - 1].value(), true);
    out[s] = stages[s]->forward(ctx, {.ids = s == 0 ? batch.ids : Tensor(),
                                      .residual = in[s],
                                      .sequences = batch.sequences,
                                      .records = &records.back()});
    for (const Parameter& p : stages[s]->parameters().all()) CHECK_FALSE((p.node && p.node->filled()));
  }
  Context ctx{.tape = &tapes.back()};
  out.back() = stages.back()->loss(ctx, out.back(), batch.labels, batch.sequences, 1);
  CHECK(out.back().value().to_vector()[0] == doctest::Approx(want).epsilon(1e-14));
  Tensor gradient = Tensor::scalar(1, DType::f64, Device::cpu);
  for (std::size_t s = stages.size(); s-- > 0;) {
    tapes[s].backward(out[s], gradient);
    if (s > 0) gradient = in[s].node()->take();
  }
  std::size_t compared = 0;
  for (const auto& stage : stages)
    for (const Parameter& p : stage->parameters().all()) {
      if (!p.node) continue;
      CAPTURE(p.name);
      const Parameter& same = *std::ranges::find(whole.parameters().all(), p.name, &Parameter::name);
      CHECK(relative_error(p.node->grad(), same.node->grad()) < 1e-12);
      ++compared;
    }
  const auto trained =
      std::ranges::count_if(whole.parameters().all(), [](const Parameter& p) { return p.node != nullptr; });
  CHECK(compared == static_cast<std::size_t>(trained));
}

}  // namespace

TEST_CASE("model parts: stages one after another give loss and gradients of the whole") {
  check_stages(with_biases(), {0, 0, 2, 5, 6, 6});  // first and last without blocks
}

TEST_CASE("model parts: side rows pass stages that neither make nor read them") {
  ModelConfig config = tiny_gemma4_config();
  config.tie_word_embeddings = false;
  // Between a layer's blocks, and past a stage of one block.
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{0, 6, 12}, {0, 0, 3, 4, 5, 8, 12, 12}})
    check_stages(config, cuts);
}

TEST_CASE("model parts: stages decode keys and values that another stage has made") {
  ModelConfig config = tiny_gemma4_config();
  config.tie_word_embeddings = false;
  Stack whole(config, DType::f64, Device::cpu);
  randomise(whole, 31);
  const TestBatch batch = random_batch(whole.config(), {11}, 32);
  const Tensor want = hidden_of(whole, batch);
  const std::vector<std::int64_t> cuts{0, 4, 8,
                                       12};  // the makers on the first stage, a reader on each other one
  std::vector<std::unique_ptr<Stack>> stages;
  std::vector<DecodeState> states;
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    ModelPart part{{{cuts[s], cuts[s + 1], s == 0, s + 2 == cuts.size()}}, {}};
    stages.push_back(std::make_unique<Stack>(whole.setup(), DType::f64, Device::cpu, part));
    copy_weights(*stages.back(), whole);
    states.push_back(stages.back()->make_state(1));
  }
  std::int64_t from = 0;
  for (const std::int64_t to : {5, 6, 11}) {
    const Sequences rows = Sequences::of_lengths(std::array{to - from}, std::array{from});
    Context ctx;
    Var out;
    for (std::size_t s = 0; s < stages.size(); ++s)
      out = stages[s]->forward(ctx, {.ids = s == 0 ? batch.ids.narrow(0, from, to - from) : Tensor(),
                                     .residual = out,
                                     .sequences = rows,
                                     .state = &states[s]});
    CHECK_CLOSE(out.value(), want.narrow(0, from, to - from), Tol({1e-12, 1e-12}));
    from = to;
  }
}

TEST_CASE("model: a forward pass that is dropped leaves no gradient behind") {
  Stack model(tiny_config("ME*-"), DType::f32, Device::cpu);
  randomise(model, 33);
  const TestBatch batch = random_batch(model.config(), {9}, 34);
  for (const bool checkpointing : {false, true}) {
    model.activation_checkpointing = checkpointing;
    Tape tape;
    Context ctx{.tape = &tape};
    (void)model.hidden(ctx, batch.ids, batch.sequences);
    for (const Parameter& p : model.parameters().all()) CHECK_FALSE((p.node && p.node->filled()));
  }
}

namespace {

/// Notes the calls, and the gradients of a block's parameters when they are said to be written.
class Recorder final : public BlockHooks {
 public:
  explicit Recorder(Stack& model) : model_(model) { model.hooks = this; }
  ~Recorder() override { model_.hooks = nullptr; }
  void before_forward(std::int64_t block) override { calls.push_back(cat("f", block)); }
  void after_forward(std::int64_t block) override { calls.push_back(cat("F", block)); }
  void before_backward(std::int64_t block) override { calls.push_back(cat("b", block)); }
  void after_backward(std::int64_t block) override { calls.push_back(cat("B", block)); }
  void gradients_written(std::int64_t block) override {
    calls.push_back(cat("W", block));
    for (const Parameter& p : model_.parameters().all())
      if (p.node && p.name.starts_with(cat("backbone.layers.", block, ".mixer.")))
        written.push_back({p.name, p.node->grad().clone()});
  }
  std::vector<std::string> calls;
  std::vector<std::pair<std::string, Tensor>> written;

 private:
  Stack& model_;
};

}  // namespace

TEST_CASE("model: hooks come around each block; gradients are whole when they are said to be") {
  Stack model(tiny_config("ME*"), DType::f32, Device::cpu);
  randomise(model, 35);
  const TestBatch batch = random_batch(model.config(), {9, 4}, 36);
  loss_and_gradients(model, batch);
  const auto want = gradients(model);
  for (const bool checkpointing : {false, true})
    for (const bool deferred : {false, true}) {
      CAPTURE(checkpointing);
      CAPTURE(deferred);
      model.parameters().clear_gradients();
      model.activation_checkpointing = checkpointing;
      Recorder recorder(model);
      Tape tape;
      if (deferred) tape.defer_weight_work();
      Context ctx{.tape = &tape};
      BlockRecords records = model.make_records();
      const Var hidden = model.forward(
          ctx, {.ids = batch.ids, .residual = {}, .sequences = batch.sequences, .records = &records});
      const Var loss = model.loss(ctx, hidden, batch.labels, batch.sequences, 1);
      tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), Device::cpu));
      std::vector<std::string> calls{"f0", "F0", "f1", "F1", "f2", "F2"};
      for (const char* i : {"2", "1", "0"})
        for (const char* call : {"b", "B", "W"})
          if (!deferred || *call != 'W') calls.push_back(std::string(call) + i);
      CHECK(recorder.calls == calls);
      tape.run_weight_work();
      if (deferred) calls.insert(calls.end(), {"W2", "W1", "W0"});
      CHECK(recorder.calls == calls);
      std::size_t compared = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        const Parameter& p = model.parameters().all()[i];
        if (!p.node) continue;
        CAPTURE(p.name);
        CHECK_BITS(p.node->grad(), want[i]);
        const auto early =
            std::ranges::find(recorder.written, p.name, &std::pair<std::string, Tensor>::first);
        if (early == recorder.written.end()) continue;
        CHECK_BITS(early->second, want[i]);
        ++compared;
      }
      CHECK(compared == recorder.written.size());
      CHECK(compared > 15);
    }
}

TEST_CASE("model: transforms can be installed at every point; biases come after an output transform") {
  Stack model(with_biases(), DType::f64, Device::cpu);
  randomise(model, 37);
  const TestBatch batch = random_batch(model.config(), {9, 4}, 38);
  const Tensor want = hidden_of(model, batch);
  std::map<TensorName, int> calls;
  for (const auto& [name, point] : model.transform_points())
    *point.transform = [&calls, name = name](Context&, const Var& x, const Sequences&) {
      ++calls[name];
      return x;
    };
  CHECK(relative_error(hidden_of(model, batch), want) < 1e-14);
  CHECK_FALSE(calls.contains(head_name() / "input"));  // The loss applies that one.
  CHECK(calls.size() + 1 == model.transform_points().size());
  for (const auto& [name, count] : calls) {
    CAPTURE(name.member);
    CHECK(count == 1);
  }
  for (const char* name : {"backbone.layers.0.mixer.in_proj.input", "backbone.layers.2.mixer.qkv.input",
                           "backbone.layers.1.mixer.shared_experts.down_proj.output"})
    CHECK(model.transform_points().contains(named(name)));

  // y = 2 (x W^T) + b: the output transform sees the product without the bias.
  ModelConfig config = tiny_config("-");
  config.mlp.bias = config.moe.bias = true;
  Stack small(config, DType::f64, Device::cpu), doubled(config, DType::f64, Device::cpu);
  randomise(small, 39);
  copy_weights(doubled, small);
  Tensor& weight = doubled.parameters().get("backbone.layers.0.mixer.down_proj.weight").value;
  for (std::int64_t i = 0; i < weight.numel(); ++i) weight.data<double>()[i] *= 2;
  *small.transform_points().at(mixer_name(0, "down_proj.output")).transform =
      [](Context& ctx, const Var& x, const Sequences&) { return add(ctx, x, x); };
  CHECK(loss_and_gradients(small, batch) ==
        doctest::Approx(loss_and_gradients(doubled, batch)).epsilon(1e-13));
  const auto bias_gradient = [](Stack& m) {
    return m.parameters().get("backbone.layers.0.mixer.down_proj.bias").node->grad();
  };
  CHECK(relative_error(bias_gradient(small), bias_gradient(doubled)) < 1e-12);
}

TEST_CASE("model: mixers compute with the widths of their local weights") {
  // Two parts of one mixer's heads, channels or experts, on one process: their outputs add up to the whole's.
  ModelConfig config = tiny_config("M*-");
  config.attention.num_key_value_heads = 2;
  Stack whole(config, DType::f64, Device::cpu);
  randomise(whole, 41);
  const auto halves = [&](std::int64_t i) {
    return [&config, i](const TensorSpec& spec) {
      const auto half = [&](std::int64_t begin, std::int64_t length) {
        return Range{begin + i * length / 2, begin + (i + 1) * length / 2};
      };
      Shard shard(spec.shape);
      const auto ends = [&](const char* suffix) { return spec.name.ends_with(suffix); };
      const std::int64_t inner = config.mamba.inner(), state = config.mamba.state_width();
      if (ends(".in_proj.weight"))
        return shard.cut(
            0, {half(0, inner), half(inner, inner), half(2 * inner, state), half(2 * inner + state, state),
                half(2 * inner + 2 * state, config.mamba.num_heads)});
      if (ends(".conv1d.weight") || ends(".conv1d.bias"))
        return shard.cut(0, {half(0, inner), half(inner, state), half(inner + state, state)});
      if (ends(".A_log") || ends(".D") || ends(".dt_bias") || ends(".mixer.norm.weight") ||
          ends("q_proj.weight") || ends("k_proj.weight") || ends("v_proj.weight") || ends("up_proj.weight"))
        return shard.cut(0, half(0, spec.shape[0]));
      if (ends("out_proj.weight") || ends("o_proj.weight") || ends("down_proj.weight"))
        return shard.cut(1, half(0, spec.shape[1]));
      return shard;
    };
  };
  const TestBatch batch = random_batch(config, {9, 6}, 42);
  // The parts run one after another: the first stops after each mixer's product, so one block at a time.
  for (std::int64_t block = 0; block < config.num_layers(); ++block) {
    CAPTURE(block);
    std::vector<Tensor> outputs;
    const Tensor rows = random_tensor({batch.sequences.tokens(), config.hidden_size}, DType::f64, 43);
    for (const std::int64_t i : {-1, 0, 1}) {
      ModelPart part{{{block, block + 1, false, false}}, {}};
      if (i >= 0) part.shard = halves(i);
      Stack model(config, DType::f64, Device::cpu, part);
      copy_weights(model, whole);
      Context ctx;
      const Tensor sum =
          model.forward(ctx, {.ids = {}, .residual = rows, .sequences = batch.sequences}).value();
      const Tensor minus = Tensor::empty(rows.shape(), DType::f64, Device::cpu);
      for (std::int64_t e = 0; e < rows.numel(); ++e)
        minus.data<double>()[e] = sum.data<double>()[e] - rows.data<double>()[e];
      outputs.push_back(minus);
    }
    const Tensor both = Tensor::empty(rows.shape(), DType::f64, Device::cpu);
    for (std::int64_t e = 0; e < rows.numel(); ++e)
      both.data<double>()[e] = outputs[1].data<double>()[e] + outputs[2].data<double>()[e];
    CHECK(relative_error(both, outputs[0]) < 1e-13);
    CHECK(relative_error(outputs[1], outputs[0]) > 1e-3);
  }
}
