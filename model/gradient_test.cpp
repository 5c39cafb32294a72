#include <doctest/doctest.h>

#include "model/test_gradients.h"
#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

// Central differences on a sample of the elements of every parameter.
void check_model_gradients(const NemotronHConfig& config, std::uint64_t seed) {
  NemotronH model(config, DType::f64, Device::cpu);
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
  NemotronHConfig c = tiny_config("E-M*");
  c.use_bias = true;
  c.mlp_bias = true;
  c.moe_latent_size = 8;
  c.n_group = 3;
  c.topk_group = 2;
  c.norm_topk_prob = false;
  c.time_step_limit_low = 0.01;
  c.time_step_limit_high = 2;
  check_model_gradients(c, 37);
}

TEST_CASE("model: gradients of several microbatches add up") {
  NemotronH model(tiny_config("ME*-"), DType::f64, Device::cpu);
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
