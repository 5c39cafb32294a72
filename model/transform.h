#pragma once
#include <functional>
#include <map>
#include <string>

#include "core/autograd.h"

namespace nemocube {

/// A differentiable map of activations that is installed from outside, such as a collective of tensor
/// parallelism. Empty: the identity.
using Transform = std::function<Var(Context&, const Var&)>;

inline Var apply(const Transform& transform, Context& ctx, const Var& x) {
  return transform ? transform(ctx, x) : x;
}

/// Where transforms can be installed, by name: "<linear layer>.input", "<linear layer>.output", such as
/// "backbone.layers.3.mixer.o_proj.output"; and "<attention>.qkv.input", which q_proj, k_proj and v_proj share.
using TransformPoints = std::map<std::string, Transform*, std::less<>>;

}  // namespace nemocube
