#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>

#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("model: a packed batch gives the hidden states, loss and gradients of its sequences one by one") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    CAPTURE(dtype);
    Stack model(tiny_config("ME*-M*"), dtype, Device::cpu);
    randomise(model, 11);
    const TestBatch batch = random_batch(model.config(), {9, 1, 14, 3, 6}, 12);
    const Tensor together = hidden_of(model, batch);
    const double loss = loss_and_gradients(model, batch);
    const auto packed = gradients(model);
    model.parameters().clear_gradients();
    double sum = 0;
    for (std::int64_t i = 0; i < batch.sequences.count(); ++i) {
      const TestBatch one = part(batch, i);
      // Allows a few roundings, because products of another size are summed in another order.
      const double eps = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
      CHECK_CLOSE(together.narrow(0, batch.sequences.begin(i), one.ids.numel()), hidden_of(model, one),
                  Tol({64 * eps, 64 * eps}));
      sum += loss_and_gradients(model, one);
    }
    const double rel = dtype == DType::f64 ? 1e-13 : 1e-5;
    CHECK(loss == doctest::Approx(sum).epsilon(rel));
    const GradientError error = gradient_error(model, packed, gradients(model));
    CAPTURE(error.name);
    CHECK(error.worst < rel);
  }
}

TEST_CASE("model: a token sees nothing behind it and nothing of other sequences") {
  Stack model(tiny_config("ME*-"), DType::f64, Device::cpu);
  randomise(model, 13);
  TestBatch batch = random_batch(model.config(), {10, 8}, 14);
  const Tensor before = hidden_of(model, batch);
  auto* id = batch.ids.data<std::int64_t>() + 6;
  *id = (*id + 1) % model.config().vocab_size;
  const Tensor after = hidden_of(model, batch);
  CHECK_BITS(after.narrow(0, 0, 6), before.narrow(0, 0, 6));
  CHECK_BITS(after.narrow(0, 10, 8), before.narrow(0, 10, 8));
  for (std::int64_t t = 6; t < 10; ++t)
    CHECK(relative_error(after.narrow(0, t, 1), before.narrow(0, t, 1)) > 1e-6);
}

TEST_CASE("model: activation checkpointing changes no bit of loss and gradients and counts experts once") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    CAPTURE(dtype);
    Stack model(tiny_config("MEE*-"), dtype, Device::cpu);
    randomise(model, 15);
    for (MoeMixer* moe : model.moe_layers()) {
      moe->router().aux_loss_coef = 0.1;
      moe->router().global_aux_loss_coef = 0.2;
      moe->router().z_loss_coef = 0.05;
    }
    const TestBatch batch = random_batch(model.config(), {9, 5}, 16);
    const TestBatch next = random_batch(model.config(), {7}, 17);
    BlockRecords records, replayed;
    const double plain = loss_and_gradients(model, batch, 1, nullptr, &records);
    loss_and_gradients(model, next);
    const auto want = gradients(model);
    std::vector<Tensor> totals;
    for (MoeMixer* moe : model.moe_layers()) {
      totals.push_back(moe->totals().sums.clone());
      moe->reset_totals();
      for (const double count : moe->totals().sums.to_vector()) CHECK(count == 0);
    }
    model.parameters().clear_gradients();
    model.activation_checkpointing = true;
    CHECK(loss_and_gradients(model, batch, 1, nullptr, &replayed) == plain);
    loss_and_gradients(model, next);
    const auto got = gradients(model);
    for (std::size_t i = 0; i < want.size(); ++i) {
      CAPTURE(model.parameters().all()[i].name);
      REQUIRE(got[i].defined() == want[i].defined());
      if (want[i].defined()) CHECK_BITS(got[i], want[i]);
    }
    REQUIRE(moe_records(records).size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const MoeRecord &a = *moe_records(records)[i], &b = *moe_records(replayed)[i];
      CHECK_BITS(a.sums.counts, b.sums.counts);
      CHECK_BITS(a.sums.losses, b.sums.losses);
      CHECK(a.sums.losses.to_vector()[0] > 0);  // aux_loss
      CHECK(a.sums.losses.to_vector()[2] > 0);  // global_aux_loss
      std::int64_t total = 0;
      for (std::int64_t e = 0; e < 6; ++e) total += a.sums.counts.data<std::int64_t>()[e];
      CHECK(total == 14 * 2);
      const Tensor& sums = model.moe_layers()[i]->totals().sums;
      CHECK_BITS(sums, totals[i]);
      CHECK(sums.to_vector().back() == 21);
    }
  }
}

TEST_CASE("model: activation checkpointing changes no bit where blocks read rows of others") {
  Stack model(tiny_gemma4_config(), DType::f64, Device::cpu);
  randomise(model, 15);
  const TestBatch batch = random_batch(model.config(), {9, 5}, 16);
  const double plain = loss_and_gradients(model, batch);
  const auto want = gradients(model);
  model.parameters().clear_gradients();
  model.activation_checkpointing = true;
  CHECK(loss_and_gradients(model, batch) == plain);
  const auto got = gradients(model);
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(model.parameters().all()[i].name);
    REQUIRE(got[i].defined() == want[i].defined());
    if (want[i].defined()) CHECK_BITS(got[i], want[i]);
  }
}

TEST_CASE("model: totals for the global auxiliary loss count recorded passes only") {
  Stack model(tiny_config("E"), DType::f32, Device::cpu);
  randomise(model, 17);
  MoeMixer& moe = *model.moe_layers().at(0);
  const TestBatch batch = random_batch(model.config(), {8}, 18);
  loss_and_gradients(model, batch);
  CHECK_FALSE(moe.totals().sums.defined());
  moe.router().global_aux_loss_coef = 0.1;
  (void)loss_only(model, batch);
  CHECK_FALSE(moe.totals().sums.defined());
  loss_and_gradients(model, batch);
  CHECK(moe.totals().sums.to_vector().back() == 8);
}

TEST_CASE("model: the loss does not depend on how many logits exist at once") {
  Stack model(tiny_config("M"), DType::f64, Device::cpu);
  randomise(model, 19);
  const TestBatch batch = random_batch(model.config(), {20}, 20);
  const double want = loss_and_gradients(model, batch);
  const auto gradients_want = gradients(model);
  for (const std::int64_t rows : {1, 3, 1000}) {
    model.parameters().clear_gradients();
    model.loss_chunk_rows = rows;
    CHECK(loss_and_gradients(model, batch) == doctest::Approx(want).epsilon(1e-14));
    CHECK(gradient_error(model, gradients(model), gradients_want).worst < 1e-13);
  }
}

TEST_CASE("model: frozen parameters get no gradient and leave the others as they were") {
  Stack model(tiny_config("ME*-"), DType::f64, Device::cpu);
  randomise(model, 21);
  const TestBatch batch = random_batch(model.config(), {11}, 22);
  const double loss = loss_and_gradients(model, batch);
  const auto want = gradients(model);
  std::vector<Parameter>& all = model.parameters().all();
  for (const std::size_t stride : {2, 3, 5}) {
    model.parameters().clear_gradients();
    for (std::size_t i = 0; i < all.size(); ++i) all[i].trainable = i % stride != 0;
    CHECK(loss_and_gradients(model, batch) == loss);
    const auto got = gradients(model);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CAPTURE(all[i].name);
      if (!all[i].wants_grad())
        CHECK_FALSE(got[i].defined());
      else
        CHECK_BITS(got[i], want[i]);
    }
  }
  // When nothing is trainable, nothing is recorded.
  for (Parameter& p : all) p.trainable = false;
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  (void)model.hidden(ctx, batch.ids, batch.sequences);
  CHECK(tape.size() == 0);
}

TEST_CASE("model: every kernel variant gives the same loss and gradients") {
  Stack model(tiny_config("ME*-M"), DType::f64, Device::cpu);
  randomise(model, 23);
  const TestBatch batch = random_batch(model.config(), {13, 6}, 24);
  const double want = loss_and_gradients(model, batch);
  const auto gradients_want = gradients(model);
  std::size_t tried = 0;
  for (const auto& [op, names] : kernel_variants())
    for (const std::string& name : names) {
      CAPTURE(op);
      CAPTURE(name);
      KernelChoice choice;
      choice.by_op[op] = name;
      model.parameters().clear_gradients();
      CHECK(loss_and_gradients(model, batch, 1, &choice) == doctest::Approx(want).epsilon(1e-12));
      const GradientError error = gradient_error(model, gradients(model), gradients_want);
      CAPTURE(error.name);
      CHECK(error.worst < 1e-11);
      ++tried;
    }
  CHECK(tried >= 8);
}

TEST_CASE("model: the same number of threads gives the same bits; other numbers only round differently") {
  const int threads = omp_get_max_threads();
  ModelConfig config = tiny_config("ME*-M");
  config.hidden_size = 64;
  Stack model(config, DType::f32, Device::cpu);
  randomise(model, 25);
  const TestBatch batch = random_batch(model.config(), {70, 33}, 26);
  std::vector<std::vector<Tensor>> results;
  std::vector<double> losses;
  for (const int count : {2, 2, 1, 3}) {
    omp_set_num_threads(count);
    model.parameters().clear_gradients();
    losses.push_back(loss_and_gradients(model, batch));
    results.push_back(gradients(model));
  }
  omp_set_num_threads(threads);
  CHECK(losses[0] == losses[1]);
  for (std::size_t i = 0; i < results[0].size(); ++i)
    if (results[0][i].defined()) CHECK_BITS(results[0][i], results[1][i]);
  for (const std::size_t other : {2, 3}) {
    CHECK(losses[other] == doctest::Approx(losses[0]).epsilon(1e-6));
    CHECK(gradient_error(model, results[other], results[0]).worst < 1e-5);
  }
}

TEST_CASE("model: a bf16 model errs like an f32 model whose weights are off by a rounding of bf16") {
  Stack narrow(tiny_config("M-*M"), DType::bf16, Device::cpu),
      wide(tiny_config("M-*M"), DType::f32, Device::cpu);
  randomise(narrow, 27);
  for (std::size_t i = 0; i < wide.parameters().all().size(); ++i)
    wide.parameters().all()[i].value.copy_from(narrow.parameters().all()[i].value);
  const TestBatch batch = random_batch(narrow.config(), {15, 8}, 28);
  const double loss = loss_and_gradients(narrow, batch), want = loss_and_gradients(wide, batch);
  const auto got = gradients(narrow), reference = gradients(wide);
  const Tensor hidden = hidden_of(narrow, batch), hidden_reference = hidden_of(wide, batch);
  wide.parameters().clear_gradients();
  for (Parameter& p : wide.parameters().all()) {
    const RandomStream stream(29, p.name);
    auto* data = p.value.data<float>();
    for (std::int64_t j = 0; j < p.value.numel(); ++j)
      data[j] *= 1 + 0x1p-8F * static_cast<float>(2 * stream.uniform(static_cast<std::uint64_t>(j)) - 1);
  }
  const double moved_loss = loss_and_gradients(wide, batch);
  const auto moved = gradients(wide);
  // Every block rounds about six results in forward, as many in backward, and its weights once. The errors
  // add like a random walk of 12 steps per block. The bound is twice that.
  const double factor = 2 * std::sqrt(12.0);
  CHECK(relative_error(hidden, hidden_reference) <
        factor * relative_error(hidden_of(wide, batch), hidden_reference));
  CHECK(std::abs(loss - want) < factor * std::max(std::abs(moved_loss - want), 0x1p-9 * want));
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!got[i].defined()) continue;
    CAPTURE(narrow.parameters().all()[i].name);
    CHECK(relative_error(got[i], reference[i]) < factor * relative_error(moved[i], reference[i]));
  }
}

TEST_CASE("model: errors name what is wrong") {
  Stack model(tiny_config("M"), DType::f32, Device::cpu);
  randomise(model, 29);
  Context ctx;
  const Tensor ids = random_ids(model.config(), 4, 1);
  CHECK_THROWS_WITH_AS((void)model.hidden(ctx, ids, Sequences::uniform(1, 3)), doctest::Contains("model"),
                       Error);
  ModelConfig bad = tiny_config("M");
  bad.mamba.num_heads = 5;
  CHECK_THROWS_WITH_AS(Stack(bad, DType::f32, Device::cpu), doctest::Contains("mamba_num_heads"), Error);
}
