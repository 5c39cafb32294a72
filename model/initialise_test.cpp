#include "model/initialise.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "model/blocks/mlp/mlp_block.h"
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

ModelConfig wide_config() {
  ModelConfig c = tiny_config("ME*-");
  c.hidden_size = 64;
  c.mamba.num_heads = 96;
  c.mamba.n_groups = 4;
  c.mamba.ssm_state_size = 16;
  c.initializer_range = 0.05;
  c.mamba.in_proj_bias = c.mamba.out_proj_bias = c.mlp.bias = c.moe.bias = true;
  c.moe.latent_size = 40;
  c.vocab_size = 300;
  c.moe.intermediate_size = 40;
  c.mlp.intermediate_size = 80;
  c.attention.head_dim = 16;
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

// Values that should be uniform in (0, 1).
void check_unit(const std::vector<double>& values) {
  const auto n = static_cast<std::int64_t>(values.size());
  const Moments m = moments(Tensor::from(values, {n}));
  CHECK(m.least > 0);
  CHECK(m.most < 1);
  CHECK(std::abs(m.mean - 0.5) < 5 * 0.29 / std::sqrt(static_cast<double>(n)));
  CHECK(std::abs(m.std - 1 / std::sqrt(12.0)) < 0.1);
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
  const ModelConfig c = wide_config();
  for (const Initialisation law : {Initialisation::hf, Initialisation::megatron}) {
    const bool megatron = law == Initialisation::megatron;
    CAPTURE(megatron);
    Stack model(c, DType::f32, Device::cpu);
    for (Parameter& p : model.parameters().all()) p.value.fill(std::nan(""));
    initialise(model, 81, law);
    std::size_t inputs = 0, outputs = 0;
    for (const Parameter& p : model.parameters().all()) {
      CAPTURE(p.name);
      const auto ends = [&](std::string_view suffix) { return p.name.ends_with(suffix); };
      const auto values = p.value.to_vector();
      if (ends("A_log") && megatron) {
        std::vector<double> place;
        for (const double v : values) place.push_back((std::exp(v) - 1) / 15);
        check_unit(place);
      } else if (ends("A_log")) {
        for (std::size_t i = 0; i < values.size(); ++i)
          CHECK(std::exp(values[i]) == doctest::Approx(static_cast<double>(i + 1)).epsilon(1e-6));
      } else if (ends("dt_bias")) {
        const double low = 1e-3, high = 0.1;
        std::vector<double> place;
        for (const double v : values)
          place.push_back(std::log(std::log1p(std::exp(v)) / low) / std::log(high / low));
        check_unit(place);
      } else if (ends(".D") || ends("norm.weight") || ends("norm_f.weight")) {
        for (const double v : values) CHECK(v == 1);
      } else if (ends("conv1d.weight") || ends("conv1d.bias")) {
        check_uniform(p.value, 0.5);
      } else if (ends("bias")) {
        for (const double v : values) CHECK(v == 0);
      } else if (ends("mixer.out_proj.weight") && !megatron) {
        check_uniform(p.value, 1 / std::sqrt(288.0) / std::sqrt(4.0));
      } else if (p.name.find(".down_proj") != std::string::npos || ends(".o_proj.weight") ||
                 ends(".out_proj.weight") || ends("fc2_latent_proj.weight")) {
        check_normal(p.name, p.value, megatron ? 0.05 / 2 : 0.05);
        ++outputs;
      } else {
        check_normal(p.name, p.value, 0.05);
        ++inputs;
      }
    }
    CHECK(inputs == 2 + 1 + 1 + 1 + 1 + 1 + 3 + 1);  // ends, in_proj, gate, fc1, experts, shared, q k v, mlp
    CHECK(outputs == 5 + (megatron ? 1 : 0));        // fc2, experts, shared, o_proj, mlp; out_proj
  }
}

TEST_CASE("initialise: the floor of the time step, and out_proj without rescaling") {
  ModelConfig c = wide_config();
  c.mamba.time_step_floor = 0.05;
  c.rescale_prenorm_residual = false;
  for (const Initialisation law : {Initialisation::hf, Initialisation::megatron}) {
    Stack model(c, DType::f64, Device::cpu);
    initialise(model, 82, law);
    std::size_t floored = 0;
    for (const double v : model.parameters().get("backbone.layers.0.mixer.dt_bias").value.to_vector()) {
      const double dt = std::log1p(std::exp(v));
      CHECK(dt >= 0.05 * (1 - 1e-12));
      floored += dt < 0.05 * (1 + 1e-12);
    }
    CHECK(floored > 96 / 2);  // expected: a share of ln 50 / ln 100 = 85 %
    check_normal("out_proj", model.parameters().get("backbone.layers.0.mixer.out_proj.weight").value,
                 law == Initialisation::hf ? 0.05 : 0.05 / 2);
  }
}

TEST_CASE("initialise: Mamba mixers that start plain") {
  ModelConfig c = wide_config();
  c.mamba.start = MambaStart::plain;
  c.rescale_prenorm_residual = false;
  for (const Initialisation law : {Initialisation::hf, Initialisation::megatron}) {
    Stack model(c, DType::f64, Device::cpu);
    initialise(model, 82, law);
    const auto value = [&](const char* member) {
      return model.parameters().get(mixer_name(0, member)).value;
    };
    if (law == Initialisation::megatron) {  // Megatron's own law counts
      check_uniform(value("conv1d.weight"), 0.5);
      continue;
    }
    check_normal("conv1d.weight", value("conv1d.weight"), 0.05);
    check_normal("out_proj.weight", value("out_proj.weight"), 0.05);
    for (const double v : value("conv1d.bias").to_vector()) CHECK(v == 0);
    for (const char* member : {"dt_bias", "D"})
      for (const double v : value(member).to_vector()) CHECK(v == 1);
    CHECK(value("A_log").to_vector()[2] == doctest::Approx(std::log(3)));
  }
}

TEST_CASE("initialise: a tensor without a law is an error, not a guess") {
  const ModelConfig c = wide_config();
  Parameter p;
  p.name = "backbone.layers.0.mixer.strange.weight";
  p.value = p.own = Tensor::zeros({4, 4}, DType::f32, Device::cpu);
  for (const Initialisation law : {Initialisation::hf, Initialisation::megatron})
    CHECK_THROWS_AS(initialise(p, c, 1, law), std::logic_error);
}

TEST_CASE("initialise: depends on seed and name alone, and on the dtype only by rounding") {
  for (const Initialisation law : {Initialisation::hf, Initialisation::megatron}) {
    const ModelConfig c = wide_config();
    Stack a(c, DType::f32, Device::cpu), b(c, DType::f32, Device::cpu), other(c, DType::f32, Device::cpu),
        narrow(c, DType::bf16, Device::cpu), wide(c, DType::f64, Device::cpu);
    for (Stack* m : {&a, &b, &narrow, &wide}) initialise(*m, 83, law);
    initialise(b, 83, law);
    initialise(other, 84, law);
    for (std::size_t i = 0; i < a.parameters().all().size(); ++i) {
      const Parameter& p = a.parameters().all()[i];
      CAPTURE(p.name);
      const Tensor full = wide.parameters().all()[i].value;
      CHECK_BITS(p.value, b.parameters().all()[i].value);
      CHECK_BITS(p.value, full.to(DType::f32));
      const Tensor half = narrow.parameters().all()[i].value;
      CHECK_CLOSE(half, full, Tol({half.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-24, 0}));
      const Moments m = moments(full);
      const bool drawn = m.most > m.least && (law == Initialisation::megatron || !p.name.ends_with("A_log"));
      CHECK(compare_bits(p.value, other.parameters().all()[i].value).ok != drawn);
    }
    // A model of more blocks has the same first blocks, except for weights whose law depends on the depth.
    ModelConfig deeper = c;
    deeper.blocks.push_back(mlp_block);
    Stack more(deeper, DType::f32, Device::cpu);
    initialise(more, 83, law);
    CHECK_BITS(more.parameters().get("backbone.layers.3.mixer.up_proj.weight").value,
               a.parameters().get("backbone.layers.3.mixer.up_proj.weight").value);
    // Two tensors of one shape are not alike.
    CHECK_FALSE(compare_bits(a.parameters().get("backbone.embeddings.weight").value,
                             a.parameters().get("lm_head.weight").value)
                    .ok);
  }
}

TEST_CASE("initialise: a model on another device has the values of one on the CPU") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const ModelConfig config = wide_config();
    Stack here(config, dtype, Device::cpu), there(config, dtype, Device::guard);
    initialise(here, 5, Initialisation::hf);
    initialise(there, 5, Initialisation::hf);
    for (const Parameter& p : here.parameters().all()) {
      CAPTURE(p.name);
      CHECK_BITS(there.parameters().find(p.name)->own, p.own);
    }
  }
}

TEST_CASE("initialise: adapters have the laws of PEFT and AutoModel, and B is zero") {
  ModelSetup config = wide_config();
  for (const TensorSpec& spec : tensor_specs(config))
    if (spec.linear) config.choices.lora.modules[spec.id.module()].rank = spec.experts ? 7 : 24;
  for (const LoraInitialisation law : {LoraInitialisation::xavier, LoraInitialisation::kaiming}) {
    config.choices.lora.initialisation = law;
    Stack model(config, DType::f32, Device::cpu);
    initialise(model, 91);
    std::size_t stacks = 0, layers = 0;
    for (const Parameter& p : model.parameters().all()) {
      if (p.name.ends_with("lora_B.weight")) {
        for (const double v : p.value.to_vector()) REQUIRE(v == 0);
        continue;
      }
      if (!p.name.ends_with("lora_A.weight")) continue;
      // A stack [E, r, in] counts r times its inputs, and E r outputs.
      const bool stack = p.value.ndim() == 3;
      ++(stack ? stacks : layers);
      const auto in = static_cast<double>(p.value.dim(p.value.ndim() - 1)),
                 rank = static_cast<double>(p.value.dim(p.value.ndim() - 2)),
                 experts = stack ? static_cast<double>(p.value.dim(0)) : 0;
      if (law == LoraInitialisation::xavier) {
        check_normal(p.name, p.value, std::sqrt(2 / (stack ? rank * (in + experts) : in + rank)));
        continue;
      }
      CAPTURE(p.name);
      check_uniform(p.value, 1 / std::sqrt(stack ? in * rank : in));
    }
    CHECK(stacks == 2);
    CHECK(layers == config.choices.lora.modules.size() - 2);
  }
}
