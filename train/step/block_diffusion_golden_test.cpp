#include <doctest/doctest.h>

#include <vector>

#include "data/safetensors/reader.h"
#include "model/test_gradients.h"
#include "model/test_models.h"
#include "tests/support/compare.h"
#include "tests/support/paths.h"
#include "train/model_io/model_io.h"
#include "train/step/train_step.h"

// Training by denoising, against Hugging Face's layers with the mask as a table
// (tools/goldens/make_block_diffusion.py).

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const std::filesystem::path golden = source_dir() / "tests" / "goldens" / "nemotron_labs_diffusion";

ModelChoices choices_of(Paradigm paradigm) {
  ModelChoices choices;
  choices.diffusion = {.paradigm = paradigm, .block_size = 4};
  return choices;
}

/// The golden's texts, noised as it says.
TokenBatch golden_batch(Paradigm paradigm) {
  const SafetensorsFile file(golden / "training.safetensors");
  const auto integers = [&](const char* name) {
    std::vector<std::int64_t> values;
    for (const double v : file.tensor(name).to_vector()) values.push_back(static_cast<std::int64_t>(v));
    return values;
  };
  const auto tokens = integers("tokens"), lengths = integers("lengths"), targets = integers("targets"),
             noised = integers("noised");
  const auto probability = file.tensor("probability").to_vector();
  std::vector<std::int64_t> ids, labels, of_sequences;
  std::vector<double> weights;
  std::size_t begin = 0;
  TokenBatch counts(Tensor::from<std::int64_t>({}, {0}), Tensor::from<std::int64_t>({}, {0}), {});
  for (const std::int64_t length : lengths) {
    const std::size_t end = begin + static_cast<std::size_t>(length);
    for (std::size_t t = begin; t < end; ++t) {
      ids.push_back(noised[t] ? 39 : tokens[t]);
      labels.push_back(noised[t] ? tokens[t] : ignored_label);
      weights.push_back(noised[t] ? 0.3 / probability[t] : 0);
      counts.noised_tokens += noised[t];
      counts.label_tokens += targets[t];
    }
    of_sequences.push_back(length);
    for (std::size_t t = begin; t < end && paradigm == Paradigm::block_diff; ++t) {
      ids.push_back(tokens[t]);
      labels.push_back(t + 1 < end && targets[t + 1] ? tokens[t + 1] : ignored_label);
      weights.push_back(0);
    }
    if (paradigm == Paradigm::block_diff) of_sequences.push_back(length);
    begin = end;
  }
  const Shape shape{std::ssize(ids)};
  TokenBatch batch(Tensor::from(ids, shape), Tensor::from(labels, shape),
                   Sequences::of_lengths(of_sequences));
  batch.noised_weights = Tensor::from(weights, shape);
  batch.noised_tokens = counts.noised_tokens;
  batch.label_tokens = counts.label_tokens;
  return batch;
}

/// Loss and gradients as a step forms them.
double loss_and_gradients(Stack& model, const TokenBatch& batch) {
  Tape tape;
  Context ctx{.tape = &tape};
  const auto labels = static_cast<double>(batch.label_tokens),
             noised = static_cast<double>(batch.noised_tokens);
  const Labels weighted(batch.labels, 0, label_weights(batch, labels / noised));
  model.parameters().clear_gradients();
  const Var loss =
      model.loss(ctx, model.hidden(ctx, batch.ids, batch.sequences), weighted, batch.sequences, 1 / labels);
  tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), loss.value().device()));
  return loss.value().to_vector().front() / labels;
}

}  // namespace

TEST_CASE("denoising: logits, loss and gradients against Hugging Face's layers with a mask") {
  const OpenedModel source(golden);
  for (const auto& [paradigm, name] :
       {std::pair(Paradigm::block_diff, "block_diff"), {Paradigm::bidirectional, "bidirectional"}})
    for (const DType dtype : {DType::f64, DType::f32}) {
      CAPTURE(name);
      CAPTURE(dtype);
      const LoadedModel loaded = load_model(source, dtype, Device::cpu, {.choices = choices_of(paradigm)});
      Stack& model = *loaded.model;
      const TokenBatch batch = golden_batch(paradigm);
      const SafetensorsFile want(golden / (std::string(name) + ".safetensors"));
      const double tolerance = dtype == DType::f64 ? 1e-7 : 1e-5;  // the golden is stored in f32
      Context ctx;
      CHECK(relative_error(model.logits(model.hidden(ctx, batch.ids, batch.sequences).value()),
                           want.tensor("logits")) < tolerance);
      const double loss = want.tensor("loss").to_vector().front();
      CHECK(loss_and_gradients(model, batch) == doctest::Approx(loss).epsilon(tolerance));
      for (const Parameter& p : model.parameters().all()) {
        CAPTURE(p.name);
        CHECK(relative_error(p.gradient(), want.tensor("grad." + p.name)) < 10 * tolerance);
      }
      model.parameters().clear_gradients();
      // A step, and an evaluation, count and weigh by themselves.
      Optimizer optimizer(model.parameters(), {});
      const Tensor sums = Tensor::zeros({2}, DType::f64, Device::cpu);
      const EvaluatedTokens counts = evaluate_loss(*loaded.parallel, batch, nullptr, sums);
      CHECK(sums.to_vector()[0] / static_cast<double>(counts.labels) +
                sums.to_vector()[1] / static_cast<double>(counts.noised) ==
            doctest::Approx(loss).epsilon(tolerance));
      CHECK(train_step(*loaded.parallel, optimizer, {&batch, 1}, {}).loss ==
            doctest::Approx(loss).epsilon(tolerance));
      CHECK(evaluate_loss(*loaded.parallel, batch.with_capacity(70, 6, 70), nullptr, sums).noised ==
            batch.noised_tokens);
    }
}

TEST_CASE("denoising: gradients of every parameter against central differences") {
  for (const Paradigm paradigm : {Paradigm::block_diff, Paradigm::bidirectional}) {
    const LoadedModel loaded =
        load_model(OpenedModel(golden), DType::f64, Device::cpu, {.choices = choices_of(paradigm)});
    Stack& model = *loaded.model;
    const TokenBatch batch = golden_batch(paradigm);
    loss_and_gradients(model, batch);
    const auto labels = static_cast<double>(batch.label_tokens);
    const auto loss = [&] {
      Context ctx;
      const Labels weighted(batch.labels, 0,
                            label_weights(batch, labels / static_cast<double>(batch.noised_tokens)));
      return model.loss(ctx, model.hidden(ctx, batch.ids, batch.sequences), weighted, batch.sequences, 1)
                 .value()
                 .to_vector()
                 .front() /
             labels;
    };
    CHECK(check_parameter_gradients(model, loss, {.elements = 6, .first = 3},
                                    [](const Parameter& p) { return p.wants_grad(); }) > 10);
    model.parameters().clear_gradients();
  }
}

TEST_CASE("denoising: activation checkpointing, microbatches and room change nothing but rounding") {
  const auto step = [](const std::vector<TokenBatch>& batches, bool checkpointing) {
    const LoadedModel loaded = load_model(OpenedModel(golden), DType::f64, Device::cpu,
                                          {.choices = choices_of(Paradigm::block_diff)});
    loaded.model->activation_checkpointing = checkpointing;
    Optimizer optimizer(loaded.model->parameters(), {});
    return train_step(*loaded.parallel, optimizer, batches, {});
  };
  const TokenBatch batch = golden_batch(Paradigm::block_diff);
  const auto text = [&](std::int64_t first, std::int64_t rows, std::int64_t labels, std::int64_t noised) {
    const std::int64_t begin = batch.sequences.begin(first);
    TokenBatch part(batch.ids.narrow(0, begin, rows).clone(), batch.labels.narrow(0, begin, rows).clone(),
                    Sequences::uniform(2, rows / 2));
    part.noised_weights = batch.noised_weights.narrow(0, begin, rows).clone();
    part.label_tokens = labels;
    part.noised_tokens = noised;
    return part;
  };
  const auto noised = [&](std::int64_t begin, std::int64_t rows) {
    std::int64_t count = 0;
    for (const double w : batch.noised_weights.narrow(0, begin, rows).to_vector()) count += w > 0;
    return count;
  };
  const StepResult one = step({batch}, false);
  for (const StepResult& other :
       {step({batch}, true), step({batch.with_capacity(60, 6, 60)}, false),
        step({text(0, 24, 9, noised(0, 24)), text(2, 20, 9, noised(24, 20))}, false)}) {
    CHECK(other.loss == doctest::Approx(one.loss).epsilon(1e-13));
    CHECK(other.grad_norm == doctest::Approx(one.grad_norm).epsilon(1e-12));
    CHECK(other.label_tokens == 18);
  }
}

TEST_CASE("denoising: models and choices that do not fit are refused") {
  ModelSetup other(tiny_config("*-"), choices_of(Paradigm::block_diff));
  const auto fault = [](const ModelSetup& setup) {
    try {
      setup.validate();
      return std::string("no error");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  CHECK(fault(other) ==
        "denoising: want a model that denoises (such as Nemotron-Labs-Diffusion), got another");
  other.config.diffusion = {.mask_token_id = 3, .block_size = 4};
  CHECK(fault(other) == "no error");
  other.config.attention.window = 3;
  CHECK(fault(other) == "denoising: want attention without a window, got one of 3 keys");
  other.config.attention.window = 0;
  other.choices.diffusion.block_size = 0;
  CHECK(fault(other) == "block diffusion: block_size: want at least 1, got 0");
}
