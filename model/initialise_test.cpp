#include "model/initialise.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

struct Moments {
  double mean = 0, std = 0, least = 0, most = 0;
};
Moments moments(const Tensor& t) {
  const auto x = t.to_vector();
  Moments m{0, 0, x[0], x[0]};
  for (const double v : x) {
    m.mean += v / static_cast<double>(x.size());
    m.least = std::min(m.least, v);
    m.most = std::max(m.most, v);
  }
  for (const double v : x) m.std += (v - m.mean) * (v - m.mean) / static_cast<double>(x.size());
  m.std = std::sqrt(m.std);
  return m;
}

NemotronHConfig wide_config() {
  NemotronHConfig c = tiny_config("ME*-");
  c.hidden_size = 64;
  c.mamba_num_heads = 96;
  c.n_groups = 4;
  c.ssm_state_size = 16;
  c.initializer_range = 0.05;
  c.use_bias = c.mlp_bias = true;
  c.moe_latent_size = 40;
  c.vocab_size = 300;
  c.moe_intermediate_size = 40;
  c.intermediate_size = 80;
  c.head_dim = 16;
  return c;
}

// Three standard errors of the standard deviation of n normal (or narrower) values, five of the mean.
void check_normal(const std::string& name, const Tensor& t, double sigma) {
  CAPTURE(name);
  const Moments m = moments(t);
  const auto n = static_cast<double>(t.numel());
  CHECK(std::abs(m.mean) < 5 * sigma / std::sqrt(n));
  CHECK(std::abs(m.std / sigma - 1) < 5 / std::sqrt(2 * n));
}

void check_uniform(const Tensor& t, double bound) {
  const Moments m = moments(t);
  const auto n = static_cast<double>(t.numel());
  CHECK(m.least >= -bound);
  CHECK(m.most <= bound);
  CHECK(m.most > bound * (1 - 20 / n));
  CHECK(m.least < -bound * (1 - 20 / n));
  CHECK(std::abs(m.std / (bound / std::numbers::sqrt3) - 1) < 5 / std::sqrt(2 * n));
}

}  // namespace

TEST_CASE("initialise: the laws of every parameter") {
  const NemotronHConfig c = wide_config();
  NemotronH model(c, DType::f32);
  for (Parameter& p : model.parameters().all()) p.value.fill(std::nan(""));
  initialise(model, 81);
  std::size_t normal = 0;
  for (const Parameter& p : model.parameters().all()) {
    CAPTURE(p.name);
    const auto ends = [&](std::string_view suffix) { return p.name.ends_with(suffix); };
    const auto values = p.value.to_vector();
    if (ends("A_log")) {
      for (std::size_t i = 0; i < values.size(); ++i)
        CHECK(std::exp(values[i]) == doctest::Approx(static_cast<double>(i + 1)).epsilon(1e-6));
    } else if (ends("dt_bias")) {
      const double low = 1e-3, high = 0.1;
      std::vector<double> place;
      for (const double v : values) {
        const double dt = std::log1p(std::exp(v));
        CHECK(dt >= low * (1 - 1e-5));
        CHECK(dt <= high * (1 + 1e-5));
        place.push_back(std::log(dt / low) / std::log(high / low));
      }
      const Moments m = moments(Tensor::from(place, {96}));
      CHECK(std::abs(m.mean - 0.5) < 5 * 0.29 / std::sqrt(96.0));
      CHECK(std::abs(m.std - 1 / std::sqrt(12.0)) < 0.1);
    } else if (ends(".D") || ends("norm.weight") || ends("norm_f.weight")) {
      for (const double v : values) CHECK(v == 1);
    } else if (ends("conv1d.weight") || ends("conv1d.bias")) {
      check_uniform(p.value, 0.5);
    } else if (ends("bias")) {
      for (const double v : values) CHECK(v == 0);
    } else if (ends("mixer.out_proj.weight")) {
      check_uniform(p.value, 1 / std::sqrt(288.0) / std::sqrt(4.0));
    } else {
      check_normal(p.name, p.value, 0.05);
      ++normal;
    }
  }
  CHECK(normal ==
        2 + 1 + 1 + 2 + 2 + 2 + 4 + 2);  // ends, in_proj, gate, latent, experts, shared, attention, mlp
}

TEST_CASE("initialise: the floor of the time step, and out_proj without rescaling") {
  NemotronHConfig c = wide_config();
  c.time_step_floor = 0.05;
  c.rescale_prenorm_residual = false;
  NemotronH model(c, DType::f64);
  initialise(model, 82);
  std::size_t floored = 0;
  for (const double v : model.parameters().get("backbone.layers.0.mixer.dt_bias").value.to_vector()) {
    const double dt = std::log1p(std::exp(v));
    CHECK(dt >= 0.05 * (1 - 1e-12));
    floored += dt < 0.05 * (1 + 1e-12);
  }
  CHECK(floored > 96 / 2);  // ln 50 / ln 100 of them: 85 %
  check_normal("out_proj", model.parameters().get("backbone.layers.0.mixer.out_proj.weight").value, 0.05);
}

TEST_CASE("initialise: depends on seed and name alone, and on the dtype only by rounding") {
  const NemotronHConfig c = wide_config();
  NemotronH a(c, DType::f32), b(c, DType::f32), other(c, DType::f32), narrow(c, DType::bf16),
      wide(c, DType::f64);
  for (NemotronH* m : {&a, &b, &narrow, &wide}) initialise(*m, 83);
  initialise(b, 83);
  initialise(other, 84);
  for (std::size_t i = 0; i < a.parameters().all().size(); ++i) {
    const Parameter& p = a.parameters().all()[i];
    CAPTURE(p.name);
    const Tensor full = wide.parameters().all()[i].value;
    CHECK_BITS(p.value, b.parameters().all()[i].value);
    CHECK_BITS(p.value, full.to(DType::f32));
    const Tensor half = narrow.parameters().all()[i].value;
    CHECK_CLOSE(half, full, Tol({half.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-24, 0}));
    const Moments m = moments(full);
    const bool drawn = m.most > m.least && !p.name.ends_with("A_log");
    CHECK(compare_bits(p.value, other.parameters().all()[i].value).ok != drawn);
  }
  // A model of more blocks has the same first blocks, but for out_proj, whose bound knows the depth.
  NemotronHConfig deeper = c;
  deeper.blocks.push_back(BlockKind::mlp);
  NemotronH more(deeper, DType::f32);
  initialise(more, 83);
  CHECK_BITS(more.parameters().get("backbone.layers.3.mixer.up_proj.weight").value,
             a.parameters().get("backbone.layers.3.mixer.up_proj.weight").value);
  // Two tensors of one shape are not alike.
  CHECK_FALSE(compare_bits(a.parameters().get("backbone.embeddings.weight").value,
                           a.parameters().get("lm_head.weight").value)
                  .ok);
}
