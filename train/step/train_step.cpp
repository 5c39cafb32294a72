#include "train/step/train_step.h"

#include <cmath>

#include "ops/cross_entropy/cross_entropy.h"
#include "ops/global_norm/global_norm.h"
#include "ops/router/router.h"

namespace nemocube {
namespace {

// Auxiliary losses contribute their gradients in the backward pass. Their weight relative to the token mean
// must not depend on how the batch is cut into microbatches.
void begin_step(NemotronH& model, std::size_t microbatches) {
  model.parameters().clear_gradients();
  for (MoeMixer* moe : model.moe_layers()) {
    moe->reset_counts();
    moe->router().aux_grad_scale = 1.0 / static_cast<double>(microbatches);
  }
}

std::vector<std::pair<std::string, double>> auxiliary_losses(const NemotronH& model,
                                                             std::size_t microbatches) {
  struct Kind {
    const char* name;
    double RouterOptions::*coef;
    double MoeMixer::AuxLosses::*sum;
  };
  static constexpr Kind kinds[] = {
      {"aux_loss", &RouterOptions::aux_loss_coef, &MoeMixer::AuxLosses::aux},
      {"seq_aux_loss", &RouterOptions::seq_aux_loss_coef, &MoeMixer::AuxLosses::seq_aux},
      {"global_aux_loss", &RouterOptions::global_aux_loss_coef, &MoeMixer::AuxLosses::global_aux},
      {"z_loss", &RouterOptions::z_loss_coef, &MoeMixer::AuxLosses::z},
  };
  std::vector<std::pair<std::string, double>> losses;
  for (const Kind& kind : kinds) {
    bool on = false;
    double sum = 0;
    for (MoeMixer* moe : model.moe_layers()) {
      on = on || moe->router().*kind.coef != 0;
      sum += moe->aux_losses().*kind.sum;
    }
    if (on) losses.emplace_back(kind.name, sum / static_cast<double>(microbatches));
  }
  return losses;
}

/// Weights, then router biases. Returns StepResult::not_finite.
std::string update(NemotronH& model, Optimizer& optimizer, const StepOptions& options, double grad_scale) {
  const Parameter* lost = optimizer.step(options.lr, options.weight_decay, grad_scale);
  if (options.expert_bias_rate > 0)
    for (const MoeMixer* moe : model.moe_layers()) {
      const Parameter& bias = moe->correction_bias();
      if (!update_expert_bias(bias.value, moe->counts(), options.expert_bias_rate) && !lost) lost = &bias;
    }
  return lost ? lost->name : "";
}

}  // namespace

StepResult train_step(NemotronH& model, Optimizer& optimizer, std::span<const TokenBatch> microbatches,
                      const StepOptions& options) {
  StepResult result;
  for (const TokenBatch& batch : microbatches) result.label_tokens += count_labels(batch.labels);
  begin_step(model, microbatches.size());
  if (result.label_tokens == 0) {
    result.outcome = StepOutcome::no_labels;
    return result;
  }
  const double scale = 1.0 / static_cast<double>(result.label_tokens);
  double loss_sum = 0;
  for (const TokenBatch& batch : microbatches) {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    ctx.training = true;
    ctx.kernels = options.kernels;
    const Var hidden = model.hidden(ctx, batch.ids, batch.sequences);
    const Var loss = model.loss(ctx, hidden, batch.labels, scale);
    loss_sum += loss.value().to_vector()[0];
    tape.backward(loss, Tensor::scalar(1, loss.value().dtype()));
  }
  result.loss = loss_sum * scale;
  result.auxiliary_losses = auxiliary_losses(model, microbatches.size());
  const NormResult norm = global_norm(optimizer.gradients());
  result.grad_norm = norm.norm;
  if (!norm.finite || !std::isfinite(result.loss)) {
    result.outcome = StepOutcome::non_finite;
  } else {
    result.not_finite = update(model, optimizer, options, clip_coefficient(norm.norm, options.max_norm));
  }
  model.parameters().clear_gradients();
  return result;
}

LossSum evaluate_loss(NemotronH& model, const TokenBatch& batch, const KernelChoice* kernels) {
  Context ctx;
  ctx.kernels = kernels;
  const Var hidden = model.hidden(ctx, batch.ids, batch.sequences);
  const Var loss = model.loss(ctx, hidden, batch.labels, 1);
  return {loss.value().to_vector()[0], count_labels(batch.labels)};
}

}  // namespace nemocube
