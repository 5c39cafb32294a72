#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/kernel.h"
#include "ops/router/router.h"
#include "ops/router/router_reference.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

/// What the tests of the router have in common.
namespace nemocube::testing {

struct RouterCase {
  Tensor x, gate, bias;
  RouterOptions options;
  Sequences sequences;
  RouterCase(std::int64_t tokens, std::int64_t hidden, const RouterOptions& o, DType dtype,
             double bias_scale = 0.2)
      : x(random_tensor({tokens, hidden}, dtype, 1)),
        gate(random_tensor({o.experts, hidden}, dtype, 2, 1 / std::sqrt(static_cast<double>(hidden + 1)))),
        bias(random_tensor({o.experts}, accumulate_dtype(dtype), 3, bias_scale)),
        options(o),
        sequences(Sequences::uniform(1, tokens)) {}
  Routing run(Context& ctx, Device device = Device::cpu) const {
    return route(ctx, x.to(device), gate.to(device), bias ? bias.to(device) : Tensor(), options, sequences);
  }
  RoutingReference reference() const { return route_reference(x, gate, bias, options, sequences); }
};

struct RouterLosses {
  double aux_loss, seq_aux_loss, global_aux_loss, z_loss;
  explicit RouterLosses(const Routing& r) {
    const auto values = r.losses.to_vector();
    REQUIRE(values.size() == 4);
    aux_loss = values[0], seq_aux_loss = values[1], global_aux_loss = values[2], z_loss = values[3];
  }
};

inline void check_against_reference(const Routing& got, const RoutingReference& want, double tolerance) {
  std::vector<double> weights, experts, counts(want.counts.begin(), want.counts.end());
  for (std::size_t t = 0; t < want.experts.size(); ++t) {
    experts.insert(experts.end(), want.experts[t].begin(), want.experts[t].end());
    weights.insert(weights.end(), want.weights[t].begin(), want.weights[t].end());
  }
  CHECK(got.choice.experts.dtype() == DType::i32);
  CHECK(got.choice.experts.to_vector() == experts);
  CHECK(got.counts.to_vector() == counts);
  CHECK_CLOSE(got.weights.value(), Tensor::from(weights, got.weights.shape()), (Tol{tolerance, 0}));
  CHECK(close(RouterLosses(got).aux_loss, want.aux_loss, {tolerance, 0}));
  CHECK(close(RouterLosses(got).seq_aux_loss, want.seq_aux_loss, {tolerance, 0}));
  CHECK(close(RouterLosses(got).z_loss, want.z_loss, {tolerance, 0}));
}

// With the unit matrix as gate the logits are x.
inline Tensor unit_matrix(std::int64_t n) {
  Tensor t = Tensor::zeros({n, n}, DType::f64, Device::cpu);
  for (std::int64_t i = 0; i < n; ++i) t.row<double>(i)[i] = 1;
  return t;
}
/// Without `bias` there is none.
inline Routing route_logits(const std::vector<double>& logits, const std::vector<double>& bias,
                            const RouterOptions& o) {
  Context ctx;
  const std::int64_t n = o.experts, tokens = static_cast<std::int64_t>(logits.size()) / n;
  return route(ctx, Tensor::from(logits, {tokens, n}), unit_matrix(n),
               bias.empty() ? Tensor() : Tensor::from(bias, {n}), o, Sequences::uniform(1, tokens));
}
/// Devices that have the product of the logits, too.
inline std::vector<Device> route_devices() {
  std::vector<Device> devices = test_devices("router");
  if (!runs_on_cuda("matmul")) std::erase(devices, Device::cuda);
  return devices;
}
inline std::vector<double> chosen(const Routing& r) { return r.choice.experts.to_vector(); }

}  // namespace nemocube::testing
