#pragma once
#include "model/parameters.h"
#include "ops/layernorm/layernorm.h"
#include "ops/rmsnorm/rmsnorm.h"

namespace nemocube {

/// A norm of the residual stream, as the config says (NormKind, layer_norm_epsilon), with its weight
/// `<module>.weight` [hidden] and, of LayerNorm, its bias `<module>.bias` [hidden].
class Norm {
 public:
  /// Throws std::logic_error where the parameters lack the weight or the bias.
  Norm(const ModelConfig& config, ParameterStore& parameters, const TensorName& module)
      : weight_(&parameters.get(module / "weight")),
        bias_(config.norm == NormKind::layernorm ? &parameters.get(module / "bias") : nullptr),
        offset_(config.norm == NormKind::rmsnorm_one_plus_w ? 1 : 0),
        eps_(config.layer_norm_epsilon) {}

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
