#pragma once
#include "model/parameters.h"
#include "ops/rmsnorm/rmsnorm.h"

namespace nemocube {

/// A norm of the residual stream with its weight `<module>.weight` [hidden]: RMSNorm with the epsilon of the
/// model.
class Norm {
 public:
  /// Throws std::logic_error where the parameters lack the weight.
  Norm(const ModelConfig& config, ParameterStore& parameters, const TensorName& module)
      : weight_(&parameters.get(module / "weight")), eps_(config.layer_norm_epsilon) {}

  Var operator()(Context& ctx, const Var& x) const { return rmsnorm(ctx, x, weight_->var(), eps_); }
  /// out + residual, and its norm, in one operation.
  ResidualNorm of_sum(Context& ctx, const Var& out, const Var& residual) const {
    return residual_rmsnorm(ctx, out, residual, weight_->var(), eps_);
  }

 private:
  const Parameter* weight_;
  double eps_;
};

}  // namespace nemocube
