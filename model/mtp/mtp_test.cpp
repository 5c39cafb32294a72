#include <doctest/doctest.h>

#include "model/test_gradients.h"
#include "model/test_models.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("mtp: ids and labels are rolled inside each sequence") {
  const Sequences sequences = Sequences::of_lengths(std::vector<std::int64_t>{4, 1, 0, 3});
  const Tensor tokens = Tensor::from<std::int64_t>({1, 2, 3, 4, 5, 6, 7, 8}, {8});
  const auto at = [&](std::int64_t k) { return rolled(tokens, sequences, k, -100).to_vector(); };
  CHECK(at(0) == std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(at(1) == std::vector<double>{2, 3, 4, -100, -100, 7, 8, -100});
  CHECK(at(3) == std::vector<double>{4, -100, -100, -100, -100, -100, -100, -100});
  CHECK(at(9) == std::vector<double>(8, -100));
  CHECK_THROWS_AS(rolled(tokens.narrow(0, 0, 7), sequences, 1, 0), Error);
}

TEST_CASE("mtp: a config has the tensors of the depths that are trained, and no others") {
  ModelConfig config = tiny_config("M*");
  const std::size_t main = tensor_specs(config).size();
  config.num_nextn_predict_layers = 1;
  CHECK(tensor_specs(config).size() == main);  // carried, not trained
  const std::size_t of_depth = mtp_tensor_specs(config).size();
  CHECK(tensor_specs(with_mtp(config, 2, false)).size() == main + 2 * of_depth);
  const ModelSetup repeated = with_mtp(config, 2, true);
  CHECK(tensor_specs(repeated).size() == main + of_depth);
  CHECK(tensor_specs(repeated).back().name == "mtp.layers.1.final_layernorm.weight");
  CHECK(with_mtp(config, 2, false).expert_layers() == 2);
  CHECK(repeated.expert_layers() == 1);
  ModelSetup wrong = with_mtp(config, 2, false);
  wrong.config.num_nextn_predict_layers = 1;
  CHECK_THROWS_WITH_AS(wrong.validate(),
                       "multi-token prediction: 2 depths want num_nextn_predict_layers 2, got 1", Error);
  wrong = with_mtp(config, 1, false, -1);
  CHECK_THROWS_AS(wrong.validate(), Error);
}

namespace {

double total(const ModelSetup& config, const std::vector<double>& losses) {
  double sum = losses[0];
  for (std::size_t k = 1; k < losses.size(); ++k)
    sum += config.choices.mtp.scaling_factor / static_cast<double>(config.choices.mtp.depths) * losses[k];
  return sum;
}

// Central differences of the total loss on a sample of the elements of every parameter.
void check_mtp_gradients(const ModelSetup& config, std::uint64_t seed, bool checkpointing) {
  Stack model(config, DType::f64, Device::cpu);
  model.activation_checkpointing = checkpointing;
  randomise(model, seed);
  const TestBatch batch = random_batch(config, {7, 1, 4}, seed + 1);
  mtp_losses(model, batch);
  check_parameter_gradients(
      model, [&] { return total(config, mtp_losses(model, batch, 1, false)); },
      {.elements = 6, .first = seed, .least = 1e-4}, [](const Parameter& p) { return p.wants_grad(); });
}

}  // namespace

TEST_CASE("mtp: gradients of every parameter against central differences") {
  check_mtp_gradients(with_mtp(tiny_config("M*E"), 2, false), 51, false);
}

TEST_CASE("mtp: gradients of a repeated layer, of other blocks, with checkpointing") {
  ModelConfig config = tiny_config("E-");
  config.mtp_blocks = parse_pattern("M-E").blocks;
  check_mtp_gradients(with_mtp(config, 3, true), 53, true);
}

TEST_CASE("mtp: the main loss and its gradients are those without it where beta is 0") {
  const ModelConfig config = tiny_config("M*E");
  Stack plain(config, DType::f64, Device::cpu), ahead(with_mtp(config, 2, false, 0), DType::f64, Device::cpu);
  randomise(plain, 57);
  randomise(ahead, 57);
  const TestBatch batch = random_batch(config, {9, 3}, 58);
  CHECK(mtp_losses(ahead, batch)[0] == loss_and_gradients(plain, batch));
  for (const Parameter& p : plain.parameters().all()) {
    CAPTURE(p.name);
    if (p.node) CHECK_CLOSE(ahead.parameters().get(p.name).node->grad(), p.node->grad(), Tol({1e-13, 1e-13}));
  }
}

TEST_CASE("mtp: a token after the predicted one, and one of another sequence, change no loss before it") {
  Stack model(with_mtp(tiny_config("M*E"), 2, false), DType::f64, Device::cpu);
  randomise(model, 61);
  TestBatch batch = random_batch(model.config(), {6, 5}, 62);
  const auto only = [&](std::int64_t row) {  // depth 2 predicts labels[row] from the row two before it
    TestBatch one{batch.ids.clone(), Tensor::empty(batch.labels.shape(), DType::i64, Device::cpu),
                  batch.sequences};
    for (std::int64_t t = 0; t < one.labels.numel(); ++t)
      one.labels.data<std::int64_t>()[t] = t == row ? 3 : ignored_label;
    return one;
  };
  const std::vector<double> before = mtp_losses(model, only(4), 1, false);
  CHECK(before[2] > 0);
  const auto with_other_id = [&](std::int64_t t) {
    TestBatch changed = only(4);
    auto* id = changed.ids.data<std::int64_t>() + t;
    *id = (*id + 1) % model.config().vocab_size;
    return mtp_losses(model, changed, 1, false);
  };
  for (const std::int64_t later : {5, 6, 10}) CHECK(with_other_id(later) == before);
  CHECK(with_other_id(4)[2] != before[2]);  // it embeds the tokens up to that one
  // The label in the first row of a sequence has no row before it there.
  CHECK(mtp_losses(model, only(6), 1, false)[1] == 0);
}

TEST_CASE("mtp: losses and gradients on other devices are those of the CPU" * doctest::test_suite("cuda")) {
  Stack here(with_mtp(tiny_config("M*E"), 2, true), DType::f32, Device::cpu);
  randomise(here, 67);
  const TestBatch batch = random_batch(here.config(), {9, 0, 4}, 68);
  const std::vector<double> want = mtp_losses(here, batch, 0.1);
  for (const Device device : test_devices()) {
    if (device == Device::cpu) continue;
    CAPTURE(device);
    Stack there(here.setup(), DType::f32, device);
    copy_weights(there, here);
    const std::vector<double> got = mtp_losses(there, batch, 0.1);
    for (std::size_t k = 0; k < want.size(); ++k) CHECK(got[k] == doctest::Approx(want[k]).epsilon(1e-5));
    for (const Parameter& p : here.parameters().all()) {
      CAPTURE(p.name);
      if (p.node)
        CHECK(relative_error(there.parameters().get(p.name).node->grad().to(Device::cpu), p.node->grad()) <
              1e-4);
    }
  }
}
