#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "core/host_wait.h"
#include "model/mtp/rolled.h"
#include "model/test_gradients.h"
#include "model/test_models.h"
#include "tests/support/devices.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelSetup with_noise(ModelSetup config, double alpha = 5) {
  config.choices.noise = {alpha, 6};
  return config;
}

struct Model {
  Model(const ModelSetup& config, DType dtype, std::uint64_t seed, Device device = Device::cpu)
      : model(config, dtype, Device::cpu) {
    randomise(model, seed);
    if (device == Device::cpu) return;
    there.emplace(config, dtype, device);
    copy_weights(*there, model);
  }
  Stack& on_device() { return there ? *there : model; }
  Stack model;
  std::optional<Stack> there;
};

/// What enters the first block.
Tensor embedded(Stack& model, const TestBatch& batch) {
  Tensor rows;
  *model.transform_points().at(embeddings_name() / "output").transform = [&](Context&, const Var& x,
                                                                             const Sequences&) {
    rows = x.value();  // noise comes later, in place
    return x;
  };
  Context ctx;
  model.hidden(ctx, batch.ids, batch.sequences);
  *model.transform_points().at(embeddings_name() / "output").transform = {};
  return rows;
}

}  // namespace

TEST_CASE("noise: embeddings have uniform noise of alpha / sqrt(S H), by row number and column") {
  const ModelSetup plain = tiny_config("-");
  Model with(with_noise(plain), DType::f64, 3), without(plain, DType::f64, 3);
  const TestBatch batch = numbered(random_batch(plain, {9, 5}, 4), 70, 30);
  const auto noisy = embedded(with.model, batch).to_vector(),
             clean = embedded(without.model, batch).to_vector();
  const double magnitude = 5 / std::sqrt(30.0 * static_cast<double>(plain.config.hidden_size));
  const RandomTable draws(RandomStream(6, "neftune"));
  const auto cols = static_cast<std::size_t>(plain.config.hidden_size);
  for (std::size_t i = 0; i < noisy.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i / cols);
    const std::int64_t number = row < 9 ? 70 + row : 70 + (std::int64_t{1} << 32) + row - 9;
    const std::uint32_t bits = draws.bits(static_cast<std::uint64_t>(number), i % cols);
    const double v = (2.0 * (static_cast<std::int32_t>(bits) >> 8) + 1) * 0x1p-24;
    CHECK(noisy[i] - clean[i] == doctest::Approx(magnitude * v).epsilon(1e-9));
  }
}

TEST_CASE("noise: gradients of every parameter against central differences") {
  const ModelSetup config = with_noise(tiny_config("M*E-"));
  Model made(config, DType::f64, 61);
  const TestBatch batch = numbered(random_batch(config, {9, 4}, 62), 0);
  loss_and_gradients(made.model, batch);
  const std::size_t checked = check_parameter_gradients(
      made.model, [&] { return loss_only(made.model, batch); }, {.elements = 6, .first = 1, .least = 1e-5},
      [](const Parameter& p) { return p.name.find("embeddings") != p.name.npos; });
  CHECK(checked == 1);
}

TEST_CASE("noise: the same in a replay, other noise in another step, for another seed; none in evaluation") {
  const ModelSetup plain = tiny_config("M*E-");
  for (const bool frozen : {false, true}) {
    CAPTURE(frozen);
    ModelSetup config = with_noise(plain);
    if (frozen) config.choices.frozen.insert(embeddings_name() / "weight");
    Model made(config, DType::f32, 69), without(plain, DType::f32, 69);
    Stack& model = made.model;
    const TestBatch batch = random_batch(config, {9, 5}, 70), first = numbered(batch, 0),
                    later = numbered(batch, std::int64_t{2} << 32);
    const double want = loss_and_gradients(model, first);
    CHECK(want != loss_and_gradients(without.model, first));
    CHECK(loss_and_gradients(model, first) == want);
    CHECK(loss_and_gradients(model, later) != want);
    CHECK(loss_and_gradients(model, numbered(batch, 0, 17)) != want);
    CHECK(loss_only(model, batch) == loss_only(without.model, batch));  // evaluation
    model.activation_checkpointing = true;
    CHECK(loss_and_gradients(model, first) == want);
    config.choices.noise.seed = 7;
    Model reseeded(config, DType::f32, 69);
    CHECK(loss_and_gradients(reseeded.model, first) != want);
  }
}

TEST_CASE("noise: that of a row does not depend on the rows beside it") {
  const ModelSetup config = with_noise(tiny_config("M*E-"));
  Model made(config, DType::f64, 71);
  const TestBatch both = numbered(random_batch(config, {9, 5}, 72), 0);
  double sum = 0;
  for (const std::int64_t i : {0, 1}) {
    TestBatch one = part(both, i);
    one.sequences = one.sequences.numbered({both.sequences.numbers()[static_cast<std::size_t>(i)]}, 16);
    sum += loss_only(made.model, one);
  }
  CHECK(loss_only(made.model, both) == doctest::Approx(sum).epsilon(1e-12));
}

TEST_CASE("noise: each depth of multi-token prediction has noise of its own") {
  const ModelSetup config = with_noise(with_mtp(tiny_config("-"), 2, true));
  Model made(config, DType::f64, 73);
  const TestBatch batch = numbered(random_batch(config, {9, 5}, 74), 0);
  const Tensor same_ids = Tensor::zeros({14}, DType::i64, Device::cpu);
  std::vector<Tensor> rows;
  *made.model.transform_points().at(embeddings_name() / "output").transform = [&](Context&, const Var& x,
                                                                                  const Sequences&) {
    rows.push_back(x.value());
    return x;
  };
  Context ctx;
  const Var hidden = made.model.hidden(ctx, same_ids, batch.sequences);
  const std::vector<Tensor> ids{same_ids, same_ids};
  made.model.predict_ahead(ctx, hidden, {.ids = ids, .sequences = batch.sequences});
  REQUIRE(rows.size() == 3);
  for (const auto& [a, b] : {std::pair{0, 1}, {0, 2}, {1, 2}}) {
    const auto of_a = rows[static_cast<std::size_t>(a)].to_vector(),
               of_b = rows[static_cast<std::size_t>(b)].to_vector();
    for (std::size_t i = 0; i < of_a.size(); ++i) CHECK(of_a[i] != of_b[i]);
  }
}

TEST_CASE("noise: what enters the blocks has the same bits on every device, and the host waits for nothing" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (device == Device::cpu) continue;
      CAPTURE(device);
      CAPTURE(dtype);
      const ModelSetup config = with_noise(tiny_config("-"));
      Model made(config, dtype, 75, device);
      const TestBatch batch = numbered(random_batch(config, {9, 0, 5}, 76), 5);
      TestBatch there = batch;
      there.ids = batch.ids.to(device);
      reset_host_waits();
      const Tensor rows = embedded(made.on_device(), there);
      CHECK(host_waits().empty());
      CHECK_BITS(rows, embedded(made.model, batch));
    }
}

TEST_CASE("noise: alpha has to be a number of at least 0") {
  for (const double alpha : {-1.0, std::nan(""), HUGE_VAL})
    CHECK(message_of([&] {
            with_noise(tiny_config("-"), alpha).validate();
          }).starts_with("noise on the embeddings: alpha: want a number of at least 0, got "));
  CHECK_NOTHROW(with_noise(tiny_config("-"), 0).validate());
  // A rank that is given numbers without the length of rows.
  Model made(with_noise(tiny_config("-")), DType::f32, 77);
  CHECK_THROWS_AS(loss_only(made.model, numbered(random_batch(made.model.config(), {3}, 1), 0, 0)),
                  std::logic_error);
}
