#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/autograd.h"

namespace nemocube::testing {

/// A differentiable function of several inputs; returns all outputs that may carry gradient.
using DiffFn = std::function<std::vector<Var>(Context&, const std::vector<Var>&)>;

struct GradCheckOptions {
  double step = 1e-5;            ///< half width of the central difference
  double tolerance = 1e-6;       ///< on |analytic - numeric| / max(1, largest |gradient| of that input)
  std::vector<bool> wants{};     ///< which inputs get a gradient; empty: all
  bool unit_cotangents = false;  ///< all c_k = 1, for functions that form their gradient in the forward pass
  std::uint64_t seed = 7;
};

/// Compares the tape's gradients of L = sum_k <c_k, output_k>, with random c_k, against central differences
/// for every element of every f64 input. Returns the empty string when all agree, else what differs. Also
/// checks that a second backward pass into the same leaves doubles the gradients (Into::set, then Into::add).
/// An input that wants no gradient is a constant without a node, which the operation must do without.
std::string check_gradients(const DiffFn& fn, const std::vector<Tensor>& inputs,
                            GradCheckOptions options = {});

}  // namespace nemocube::testing

#define CHECK_GRADIENTS(...)                                                       \
  do {                                                                             \
    const std::string report_ = ::nemocube::testing::check_gradients(__VA_ARGS__); \
    CHECK_MESSAGE(report_.empty(), report_);                                       \
  } while (false)
