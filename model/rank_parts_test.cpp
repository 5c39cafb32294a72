#include <doctest/doctest.h>

#include "model/blocks/mamba/mamba.h"
#include "model/test_models.h"
#include "ops/test_ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

// What several ranks hold together, against the whole: the vocabulary, a norm group.

TEST_CASE("model: heads that are cut by rows of the vocabulary give loss and gradients of the whole") {
  const ModelConfig config = tiny_config("-");
  const std::vector<std::int64_t> cuts{0, 9, 23};
  Stack whole(config, DType::f64, Device::cpu);
  randomise(whole, 51);
  const Tensor rows = random_tensor({17, config.hidden_size}, DType::f64, 52);
  const Tensor labels = random_labels(config, 17, 53);
  const auto gradients_of = [&](Stack& model) {
    const Var hidden(rows, std::make_shared<GradNode>(rows.shape(), DType::f64, Device::cpu, false));
    Tape tape;
    Context ctx{.tape = &tape};
    const Var loss = model.loss(ctx, hidden, labels, Sequences::uniform(1, 17), 1);
    tape.backward(loss, Tensor::scalar(1, DType::f64, Device::cpu));
    return std::vector{loss.value(), hidden.node()->take(),
                       model.parameters().get("lm_head.weight").node->grad()};
  };
  const std::vector<Tensor> want = gradients_of(whole);
  std::vector<std::vector<Tensor>> parts(2);
  on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction&) {
    const auto cut = [&](const TensorSpec& spec) {
      Shard shard(spec.shape);
      return spec.name == "lm_head.weight" ? shard.cut(0, {cuts[i], cuts[i + 1]}) : shard;
    };
    Stack model(config, DType::f64, Device::cpu, {{{1, 1, false, true}}, cut});
    copy_weights(model, whole);
    model.tail()->part = part;
    parts[i] = gradients_of(model);
  });
  const Tensor dx = parts[0][1].clone();
  for (std::int64_t e = 0; e < dx.numel(); ++e) dx.data<double>()[e] += parts[1][1].data<double>()[e];
  CHECK(relative_error(dx, want[1]) < 1e-13);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    CHECK(relative_error(parts[i][0], want[0]) < 1e-14);
    CHECK(relative_error(parts[i][2], want[2].narrow(0, cuts[i], cuts[i + 1] - cuts[i])) < 1e-13);
  }
}

TEST_CASE("model: embeddings that are cut by rows of the vocabulary add up to those of the whole") {
  const ModelConfig config = tiny_config("-");
  const std::vector<std::int64_t> cuts{0, 9, 23};
  const Sequences sequences = Sequences::uniform(1, 17);
  const Tensor ids = random_ids(config, 17, 55), dy = random_tensor({17, config.hidden_size}, DType::f64, 56);
  Stack whole(config, DType::f64, Device::cpu);
  randomise(whole, 57);
  const auto run = [&](Stack& model) {
    Tape tape;
    Context ctx{.tape = &tape};
    const Var y = model.forward(ctx, {.ids = ids, .residual = {}, .sequences = sequences});
    tape.backward(y, dy);
    return std::pair{y.value(), model.parameters().get("backbone.embeddings.weight").node->grad()};
  };
  const auto part_of = [](const TensorSpec& spec, std::int64_t begin, std::int64_t end) {
    Shard shard(spec.shape);
    return spec.name == "backbone.embeddings.weight" ? shard.cut(0, {begin, end}) : shard;
  };
  const auto embeddings = [&](std::int64_t begin, std::int64_t end) {
    auto model = std::make_unique<Stack>(
        config, DType::f64, Device::cpu,
        ModelPart{{{0, 0, true, false}}, [=](const TensorSpec& spec) { return part_of(spec, begin, end); }});
    copy_weights(*model, whole);
    return model;
  };
  const auto [want, want_gradient] = run(*embeddings(0, config.vocab_size));
  const Tensor sum = Tensor::zeros(want.shape(), DType::f64, Device::cpu);
  on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction&) {
    const auto model = embeddings(cuts[i], cuts[i + 1]);
    model->front()->part = part;
    const auto [y, gradient] = run(*model);
    for (std::int64_t e = 0; e < sum.numel(); ++e) sum.data<double>()[e] += y.data<double>()[e];
    CHECK_BITS(gradient, want_gradient.narrow(0, cuts[i], cuts[i + 1] - cuts[i]));
  });
  CHECK_BITS(sum, want);
}

TEST_CASE("model: a Mamba block whose norm group spans ranks gives output and gradients of the whole") {
  ModelConfig config = tiny_config("M");
  config.mamba.n_groups = 1;
  Stack whole(config, DType::f64, Device::cpu);
  randomise(whole, 61);
  const std::int64_t ranks = 2, inner = config.mamba.inner(), heads = config.mamba.num_heads,
                     state = config.mamba.state_width();
  REQUIRE(heads % ranks == 0);
  const Sequences sequences = Sequences::of_lengths(std::vector<std::int64_t>{9, 6});
  const Tensor rows = random_tensor({15, config.hidden_size}, DType::f64, 62);
  const Tensor dy = random_tensor(rows.shape(), DType::f64, 63);
  // Heads with their channels are cut, the one group of B and C is on both ranks.
  const auto shares = [&](std::int64_t rank) {
    return [=](const TensorSpec& spec) {
      const auto share = [&](std::int64_t begin, std::int64_t length) {
        return Range{begin + rank * length / ranks, begin + (rank + 1) * length / ranks};
      };
      Shard shard(spec.shape);
      const auto ends = [&](const char* suffix) { return spec.name.ends_with(suffix); };
      const Range both{2 * inner, 2 * inner + 2 * state};
      if (ends(".in_proj.weight"))
        return shard.cut(0, {share(0, inner), share(inner, inner), both, share(both.end, heads)});
      if (ends(".conv1d.weight") || ends(".conv1d.bias"))
        return shard.cut(0, {share(0, inner), {inner, inner + 2 * state}});
      if (ends(".A_log") || ends(".D") || ends(".dt_bias") || ends(".mixer.norm.weight"))
        return shard.cut(0, share(0, spec.shape[0]));
      return ends("out_proj.weight") ? shard.cut(1, share(0, inner)) : shard;
    };
  };
  struct Outcome {
    Tensor y, dx, dnorm;
  };
  const auto run = [&](Stack& model) {
    const Var x(rows, std::make_shared<GradNode>(rows.shape(), DType::f64, Device::cpu, false));
    Tape tape;
    Context ctx{.tape = &tape};
    const Var y = model.forward(ctx, {.ids = {}, .residual = x, .sequences = sequences});
    tape.backward(y, dy);
    return Outcome{y.value(), x.node()->take(),
                   model.parameters().get("backbone.layers.0.mixer.norm.weight").node->grad()};
  };
  Stack block(config, DType::f64, Device::cpu, {{{0, 1, false, false}}, {}});
  copy_weights(block, whole);
  const Outcome want = run(block);
  // Each rank adds its part of the block to the residual, and of the gradient to dy: both are in the sums
  // twice.
  const Tensor y = Tensor::zeros(rows.shape(), DType::f64, Device::cpu), dx = y.clone();
  const auto add_to = [](const Tensor& sum, const Tensor& x, const Tensor& less) {
    for (std::int64_t e = 0; e < sum.numel(); ++e)
      sum.data<double>()[e] += x.data<double>()[e] - less.data<double>()[e];
  };
  on_ranks(ranks, [&](std::size_t rank, ThreadReduction& reduction) {
    Stack model(config, DType::f64, Device::cpu,
                {{{0, 1, false, false}}, shares(static_cast<std::int64_t>(rank))});
    copy_weights(model, whole);
    for (MambaMixer* mixer : model.mixers<MambaMixer>()) mixer->set_norm_part({&reduction, ranks});
    const Outcome got = run(model);
    add_to(y, got.y, rows);
    add_to(dx, got.dx, dy);
    CHECK(relative_error(got.dnorm, want.dnorm.narrow(0, static_cast<std::int64_t>(rank) * inner / ranks,
                                                      inner / ranks)) < 1e-13);
    CHECK(reduction.messages == std::vector<Shape>{{15, 1}, {15, 1}});
  });
  add_to(y, rows, Tensor::zeros(rows.shape(), DType::f64, Device::cpu));
  add_to(dx, dy, Tensor::zeros(rows.shape(), DType::f64, Device::cpu));
  CHECK(relative_error(y, want.y) < 1e-13);
  CHECK(relative_error(dx, want.dx) < 1e-13);
}
