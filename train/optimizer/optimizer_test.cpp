#include "train/optimizer/optimizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "model/test_models.h"
#include "ops/open_gate.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

// Gives every trainable parameter the gradient of a fixed random tensor.
void fill_gradients(Stack& model, std::uint64_t seed) {
  model.parameters().clear_gradients();
  for (Parameter& p : model.parameters().all())
    if (p.wants_grad()) {
      const Output g = p.node->into();
      fill_normal(g.to, RandomStream(seed, p.name), 0, 0.1);
    }
}

std::set<std::string> state_names(const Optimizer& optimizer) {
  std::set<std::string> names;
  for (const StateTensor& t : optimizer.state()) names.insert(t.name);
  return names;
}

Tensor state_of(const Optimizer& optimizer, const std::string& name) {
  for (const StateTensor& t : optimizer.state())
    if (t.name == name) return t.value;
  return {};
}

// A step that counts. Returns the name of the first parameter that it made not finite.
std::string step(Optimizer& optimizer, Stack& model, double lr, double weight_decay, double grad_scale) {
  const std::vector<Parameter>& all = model.parameters().all();
  UpdateGate gate = open_gate(grad_scale);
  gate.finite = Tensor::empty({std::ssize(all)}, DType::f64, Device::cpu);
  gate.finite.fill(1);
  optimizer.prepare(lr, weight_decay);
  optimizer.step(gate);
  optimizer.count_step();
  const auto finite = gate.finite.to_vector();
  const auto lost = std::ranges::find(finite, 0.0);
  return lost == finite.end() ? "" : all[static_cast<std::size_t>(lost - finite.begin())].name;
}

OptimizerOptions of_kind(OptimizerKind kind, double momentum = 0) {
  OptimizerOptions o;
  o.kind = kind;
  o.momentum = momentum;
  o.beta2 = 0.95;
  return o;
}

}  // namespace

TEST_CASE("optimizer: names, shapes and dtypes of the state") {
  Stack f32(tiny_config("M"), DType::f32, Device::cpu), bf(tiny_config("M"), DType::bf16, Device::cpu),
      f64(tiny_config("M"), DType::f64, Device::cpu);
  for (Stack* m : {&f32, &bf, &f64}) randomise(*m, 1);
  const Optimizer adam(f32.parameters(), of_kind(OptimizerKind::adamw));
  CHECK(adam.state().size() == 2 * f32.parameters().all().size());
  CHECK(adam.state()[0].name == "exp_avg.backbone.embeddings.weight");
  CHECK(adam.state()[1].name == "exp_avg_sq.backbone.embeddings.weight");
  CHECK(Optimizer(f32.parameters(), of_kind(OptimizerKind::sgd)).state().empty());
  const Optimizer momentum(f32.parameters(), of_kind(OptimizerKind::sgd, 0.9));
  CHECK(momentum.state().size() == f32.parameters().all().size());
  CHECK(state_names(momentum).contains("momentum.lm_head.weight"));

  const Optimizer mixed(bf.parameters(), of_kind(OptimizerKind::adamw));
  for (const Parameter& p : bf.parameters().all()) {
    CAPTURE(p.name);
    // A bf16 model keeps some parameters in f32. They need no master.
    const Tensor master = state_of(mixed, "master." + p.name);
    CHECK(master.defined() == (p.value.dtype() == DType::bf16));
    if (master.defined()) CHECK_BITS(master, p.value.to(DType::f32));
    CHECK(state_of(mixed, "exp_avg." + p.name).dtype() == DType::f32);
    CHECK(state_of(mixed, "exp_avg_sq." + p.name).shape() == p.value.shape());
  }
  CHECK_FALSE(state_names(mixed).contains("master.backbone.layers.0.mixer.A_log"));
  CHECK(state_names(mixed).contains("master.backbone.layers.0.norm.weight"));
  const Optimizer wide(f64.parameters(), of_kind(OptimizerKind::adamw));
  for (const StateTensor& t : wide.state()) CHECK(t.value.dtype() == DType::f64);
}

TEST_CASE("optimizer: buffers and frozen parameters have no state and do not move") {
  Stack model(tiny_config("E"), DType::f32, Device::cpu);
  randomise(model, 2);
  Parameter& frozen = model.parameters().get("lm_head.weight");
  frozen.trainable = false;
  Optimizer optimizer(model.parameters(), of_kind(OptimizerKind::adamw));
  for (const std::string& name : state_names(optimizer)) {
    CHECK(name.find("e_score_correction_bias") == std::string::npos);
    CHECK(name.find("lm_head") == std::string::npos);
  }
  const Tensor head = frozen.value.clone();
  const Tensor bias = model.moe_layers()[0]->correction_bias()->value.clone();
  fill_gradients(model, 3);
  step(optimizer, model, 0.1, 0.1, 1);
  CHECK_BITS(frozen.value, head);
  CHECK_BITS(model.moe_layers()[0]->correction_bias()->value, bias);
}

TEST_CASE("optimizer: three AdamW steps with group factors against a plain loop") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam}) {
      CAPTURE(dtype);
      Stack model(tiny_config("M"), dtype, Device::cpu);
      randomise(model, 4);
      const GroupRule rule = [](const Parameter& p) {
        if (p.name.ends_with("norm.weight")) return GroupFactors{1, 0};
        if (p.name.starts_with("lm_head")) return GroupFactors{0.25, 2};
        return GroupFactors{};
      };
      const OptimizerOptions o = of_kind(kind);
      Optimizer optimizer(model.parameters(), o, rule);
      std::vector<std::vector<double>> w, m, v;
      for (const Parameter& p : model.parameters().all()) {
        w.push_back(p.value.to_vector());
        m.emplace_back(w.back().size(), 0.0);
        v.emplace_back(w.back().size(), 0.0);
      }
      const double lr = 0.03, decay = 0.2, scale = 0.7;
      for (int t = 1; t <= 3; ++t) {
        fill_gradients(model, static_cast<std::uint64_t>(t));
        for (std::size_t i = 0; i < w.size(); ++i) {
          const Parameter& p = model.parameters().all()[i];
          const GroupFactors f = rule(p);
          const auto g = p.node->grad().to_vector();
          for (std::size_t j = 0; j < g.size(); ++j) {
            double x = scale * g[j];
            if (kind == OptimizerKind::adam) x += decay * f.weight_decay * w[i][j];
            if (kind == OptimizerKind::adamw) w[i][j] *= 1 - lr * f.lr * decay * f.weight_decay;
            m[i][j] = 0.9 * m[i][j] + 0.1 * x;
            v[i][j] = 0.95 * v[i][j] + 0.05 * x * x;
            const double mh = m[i][j] / (1 - std::pow(0.9, t)), vh = v[i][j] / (1 - std::pow(0.95, t));
            w[i][j] -= lr * f.lr * mh / (std::sqrt(vh) + 1e-8);
          }
        }
        step(optimizer, model, lr, decay, scale);
      }
      CHECK(optimizer.steps() == 3);
      const double eps = dtype == DType::f64 ? 1e-14 : 1e-6;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const Parameter& p = model.parameters().all()[i];
        CAPTURE(p.name);
        const Tensor want = Tensor::from(w[i], p.value.shape());
        const Tensor master = state_of(optimizer, "master." + p.name);
        CHECK_CLOSE(master.defined() ? master : p.value, want, Tol({4 * eps, 4 * eps}));
        // The stored weight is the master, rounded once.
        if (master.defined()) CHECK_BITS(p.value, master.to(DType::bf16));
        CHECK_CLOSE(state_of(optimizer, "exp_avg." + p.name), Tensor::from(m[i], p.value.shape()),
                    Tol({4 * eps, eps}));
        CHECK_CLOSE(state_of(optimizer, "exp_avg_sq." + p.name), Tensor::from(v[i], p.value.shape()),
                    Tol({8 * eps, eps}));
      }
    }
}

TEST_CASE("optimizer: SGD with momentum and nesterov against a plain loop") {
  for (const bool nesterov : {false, true}) {
    Stack model(tiny_config("-"), DType::f64, Device::cpu);
    randomise(model, 5);
    OptimizerOptions o = of_kind(OptimizerKind::sgd, 0.8);
    o.nesterov = nesterov;
    Optimizer optimizer(model.parameters(), o);
    std::vector<std::vector<double>> w, b;
    for (const Parameter& p : model.parameters().all()) {
      w.push_back(p.value.to_vector());
      b.emplace_back(w.back().size(), 0.0);
    }
    for (int t = 1; t <= 3; ++t) {
      fill_gradients(model, static_cast<std::uint64_t>(t));
      for (std::size_t i = 0; i < w.size(); ++i) {
        const auto g = model.parameters().all()[i].node->grad().to_vector();
        for (std::size_t j = 0; j < g.size(); ++j) {
          const double x = 0.5 * g[j] + 0.1 * w[i][j];
          b[i][j] = t == 1 ? x : 0.8 * b[i][j] + x;
          w[i][j] -= 0.05 * (nesterov ? x + 0.8 * b[i][j] : b[i][j]);
        }
      }
      step(optimizer, model, 0.05, 0.1, 0.5);
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      const Parameter& p = model.parameters().all()[i];
      CHECK_CLOSE(p.value, Tensor::from(w[i], p.value.shape()), Tol({1e-13, 1e-13}));
    }
  }
}

TEST_CASE("optimizer: a parameter without gradient has gradient zero: moments fade, weights decay") {
  Stack model(tiny_config("-"), DType::f64, Device::cpu);
  randomise(model, 6);
  Optimizer optimizer(model.parameters(), of_kind(OptimizerKind::adamw));
  fill_gradients(model, 7);
  step(optimizer, model, 0.01, 0, 1);
  Parameter& p = model.parameters().get("lm_head.weight");
  const Tensor w = p.value.clone(), m = state_of(optimizer, "exp_avg." + p.name).clone();
  model.parameters().clear_gradients();  // the buffers still hold the old numbers
  for (const Tensor& g : optimizer.gradients())
    for (const double x : g.to_vector()) REQUIRE(x == 0);
  model.parameters().clear_gradients();
  step(optimizer, model, 0, 0.5, 1);
  CHECK_BITS(p.value, w);  // the learning rate is 0, so nothing decays either
  const auto faded = state_of(optimizer, "exp_avg." + p.name).to_vector();
  for (std::size_t j = 0; j < faded.size(); ++j)
    CHECK(faded[j] == doctest::Approx(0.9 * m.to_vector()[j]).epsilon(1e-14));
}

TEST_CASE("optimizer: the first parameter that an update made not finite is named") {
  Stack model(tiny_config("-"), DType::bf16, Device::cpu);
  randomise(model, 8);
  Optimizer optimizer(model.parameters(), of_kind(OptimizerKind::adamw));
  fill_gradients(model, 9);
  CHECK(step(optimizer, model, 0.01, 0.1, 1) == "");
  Parameter& head = model.parameters().get("lm_head.weight");
  Parameter& norm = model.parameters().get("backbone.norm_f.weight");
  for (Parameter* p : {&head, &norm}) state_of(optimizer, "master." + p->name).fill(3.4e38);
  CHECK(step(optimizer, model, 0.01, 0, 1) == (&head < &norm ? head : norm).name);
}

TEST_CASE("optimizer: behind a closed gate nothing changes, and the next step is the first") {
  Stack model(tiny_config("-"), DType::bf16, Device::cpu), other(tiny_config("-"), DType::bf16, Device::cpu);
  std::vector<Optimizer> optimizers;
  for (Stack* m : {&model, &other}) {
    randomise(*m, 8);
    optimizers.emplace_back(m->parameters(), of_kind(OptimizerKind::adamw));
    fill_gradients(*m, 9);
  }
  UpdateGate gate = open_gate();
  gate.go.fill(0);
  gate.finite = Tensor::zeros({std::ssize(model.parameters().all())}, DType::f64, Device::cpu);
  optimizers[0].prepare(0.01, 0.1);
  optimizers[0].step(gate);
  CHECK(optimizers[0].steps() == 0);
  step(optimizers[0], model, 0.01, 0.1, 1);
  step(optimizers[1], other, 0.01, 0.1, 1);
  for (std::size_t i = 0; i < model.parameters().all().size(); ++i)
    CHECK_BITS(model.parameters().all()[i].value, other.parameters().all()[i].value);
  for (std::size_t i = 0; i < optimizers[0].state().size(); ++i)
    CHECK_BITS(optimizers[0].state()[i].value, optimizers[1].state()[i].value);
}

TEST_CASE("optimizer: small steps are not lost in bf16 weights") {
  Stack model(tiny_config("-"), DType::bf16, Device::cpu);
  randomise(model, 8);
  Parameter& p = model.parameters().get("backbone.norm_f.weight");
  p.value.fill(1);
  OptimizerOptions o = of_kind(OptimizerKind::sgd);
  Optimizer optimizer(model.parameters(), o);
  // The numbers of bf16 below 1 lie 2^-8 apart, so one step of 2^-12 from 1 rounds back to 1. 64 such steps
  // make 2^-6, which must not be lost.
  for (int t = 0; t < 64; ++t) {
    model.parameters().clear_gradients();
    p.node->into().to.fill(0x1p-12);
    step(optimizer, model, 1, 0, 1);
    if (t == 0) CHECK(p.value.to_vector()[0] == 1);
  }
  CHECK(p.value.to_vector()[0] == 1 - 0x1p-6);
}
