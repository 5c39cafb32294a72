#pragma once
#include "model/parameters.h"
#include "ops/layernorm/layernorm.h"
#include "ops/rmsnorm/rmsnorm.h"

namespace nemocube {

/// A norm of rows with its weight `<module>.weight` and, of LayerNorm, its bias `<module>.bias`: of the
/// residual stream, as the config says (NormKind, layer_norm_epsilon), or of a kind of its own.
class Norm {
 public:
  /// Throws std::logic_error where the parameters lack the weight or the bias.
  Norm(NormKind kind, double eps, ParameterStore& parameters, const TensorName& module)
      : weight_(&parameters.get(module / "weight")),
        bias_(kind == NormKind::layernorm ? &parameters.get(module / "bias") : nullptr),
        offset_(kind == NormKind::rmsnorm_one_plus_w ? 1 : 0),
        eps_(eps) {}
  Norm(const BlockConfig& config, ParameterStore& parameters, const TensorName& module)
      : Norm(config.norm, config.layer_norm_epsilon, parameters, module) {}

  Var operator()(Context& ctx, const Var& x) const {
    return bias_ ? layernorm(ctx, x, weight_->var(), bias_->var(), eps_)
                 : rmsnorm(ctx, x, weight_->var(), eps_, offset_);
  }
  /// out + residual, and its norm, in one operation.
  ResidualNorm of_sum(Context& ctx, const Var& out, const Var& residual) const {
    return bias_ ? residual_layernorm(ctx, out, residual, weight_->var(), bias_->var(), eps_)
                 : residual_rmsnorm(ctx, out, residual, weight_->var(), eps_, offset_);
  }

 private:
  const Parameter* weight_;
  const Parameter* bias_;  // null: none
  double offset_;          // of the weight
  double eps_;
};

}  // namespace nemocube
