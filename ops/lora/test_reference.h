#pragma once
#include <cmath>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "tests/support/compare.h"

/// For the tests of ops/lora: the branch as plain loops in f64, and bounds of its rounding.
namespace nemocube::testing {

struct LoraOperands {
  Tensor y, x, a, b, g;  ///< y: before the branch is added; g: the gradient of the result
  double scale = 1;
  Tensor kept_x{}, kept_y{};  ///< the factor of each element of x and of the branch; undefined: 1
};

struct LoraResult {
  Tensor y, dx, da, db;
};

inline Tensor in_f64(const Tensor& t) { return t.to(Device::cpu).to(DType::f64); }

/// The formulas of ops/lora/lora.h for 2-D tensors, element by element.
inline LoraResult lora_reference(const LoraOperands& o) {
  const Tensor x = in_f64(o.x), a = in_f64(o.a), b = in_f64(o.b), g = in_f64(o.g);
  LoraResult result{in_f64(o.y).clone(), Tensor::zeros(x.shape(), DType::f64, Device::cpu),
                    Tensor::zeros(a.shape(), DType::f64, Device::cpu),
                    Tensor::zeros(b.shape(), DType::f64, Device::cpu)};
  const auto factor = [](const Tensor& kept, std::int64_t t, std::int64_t c) {
    return kept ? kept.row<double>(t)[c] : 1.0;
  };
  for (std::int64_t t = 0; t < x.rows(); ++t)
    for (std::int64_t k = 0; k < a.rows(); ++k) {
      double u = 0, w = 0;
      for (std::int64_t i = 0; i < x.cols(); ++i)
        u += o.scale * a.row<double>(k)[i] * factor(o.kept_x, t, i) * x.row<double>(t)[i];
      for (std::int64_t j = 0; j < b.rows(); ++j) {
        const double kept = factor(o.kept_y, t, j), gradient = kept * g.row<double>(t)[j];
        w += o.scale * gradient * b.row<double>(j)[k];
        result.y.row<double>(t)[j] += kept * b.row<double>(j)[k] * u;
        result.db.row<double>(j)[k] += gradient * u;
      }
      for (std::int64_t i = 0; i < x.cols(); ++i) {
        const double kept = factor(o.kept_x, t, i);
        result.dx.row<double>(t)[i] += kept * w * a.row<double>(k)[i];
        result.da.row<double>(k)[i] += w * kept * x.row<double>(t)[i];
      }
    }
  return result;
}

/// The same of the absolute values: an error of one rounding is at most this times the unit of the rounding.
inline LoraResult lora_magnitudes(const LoraOperands& o) {
  const auto absolute = [](const Tensor& t) {
    std::vector<double> values = t.to_vector();
    for (double& v : values) v = std::abs(v);
    return Tensor::from(values, t.shape());
  };
  return lora_reference({.y = absolute(o.y),
                         .x = absolute(o.x),
                         .a = absolute(o.a),
                         .b = absolute(o.b),
                         .g = absolute(o.g),
                         .scale = std::abs(o.scale),
                         .kept_x = o.kept_x,
                         .kept_y = o.kept_y});
}

/// |got - want| <= roundings * magnitude for each element.
inline Verdict within(const Tensor& got, const Tensor& want, const Tensor& magnitude, double roundings) {
  if (got.shape() != want.shape()) return {false, cat("shape ", got.shape(), ", want ", want.shape())};
  const auto g = got.to_vector(), w = want.to_vector(), m = magnitude.to_vector();
  for (std::size_t i = 0; i < w.size(); ++i)
    if (!(std::abs(g[i] - w[i]) <= roundings * m[i]))
      return {false, cat("element ", i, ": got ", g[i], ", want ", w[i], " within ", roundings * m[i])};
  return {};
}

/// What the four roundings to `dtype` on the way to a result (the dropped operand, u or w, the branch, the
/// sum) and the sums of at most `terms` terms in f32 may do to it.
inline double lora_roundings(DType dtype, std::int64_t terms) {
  const double store = dtype == DType::bf16 ? 0x1p-9 : dtype == DType::f32 ? 0x1p-24 : 0x1p-53;
  const double sum = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  return 1.05 * (4 * store + static_cast<double>(terms + 4) * sum);  // 1.05: products of small numbers
}

}  // namespace nemocube::testing

#define CHECK_WITHIN(...)                                           \
  do {                                                              \
    const auto verdict_ = ::nemocube::testing::within(__VA_ARGS__); \
    CHECK_MESSAGE(verdict_.ok, verdict_.message);                   \
  } while (false)
