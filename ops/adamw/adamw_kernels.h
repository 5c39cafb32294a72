#pragma once
#include "ops/adamw/adamw.h"

/// Kernels behind ops/adamw/adamw.h: arguments checked by the caller.
namespace nemocube::cpu {

void adamw_step(const Tensor& master, const Tensor& exp_avg, const Tensor& exp_avg_sq, const Tensor& grad,
                const Tensor& model_copy, const AdamWOptions& options, const UpdateGate& gate);

}  // namespace nemocube::cpu
