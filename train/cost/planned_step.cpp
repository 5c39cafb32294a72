#include "train/cost/planned_step.h"

#include <algorithm>
#include <vector>

#include "core/allocator.h"

namespace nemocube {

std::int64_t planned_peak_bytes(const ModelSetup& setup, const PlannedSteps& steps) {
  Allocator& memory = allocator(Device::planned);
  const std::int64_t before = memory.stats().current_bytes;
  memory.reset_peak();
  Stack model(setup, steps.dtype, Device::planned);
  model.activation_checkpointing = steps.activation_checkpointing;
  if (steps.loss_chunk_rows > 0) model.loss_chunk_rows = steps.loss_chunk_rows;
  for (MoeMixer* moe : model.moe_layers()) {
    moe->router().aux_loss_coef = steps.router_losses.aux;
    moe->router().seq_aux_loss_coef = steps.router_losses.seq_aux;
    moe->router().global_aux_loss_coef = steps.router_losses.global_aux;
    moe->router().z_loss_coef = steps.router_losses.z;
  }
  ParallelModel parallel(model);
  Optimizer optimizer(model.parameters(), steps.optimizer);
  const Tensor tokens = Tensor::zeros({steps.microbatch.tokens()}, DType::i64, Device::cpu);  // of a loader
  // From the second microbatch on, gradients are added to those that are there.
  const std::vector<TokenBatch> batches(
      static_cast<std::size_t>(std::min<std::int64_t>(steps.microbatches, 2)),
      TokenBatch{tokens, tokens, steps.microbatch});
  // The first step makes the state of the optimizer.
  for (int step = 0; step < 2; ++step) train_step(parallel, optimizer, batches, steps.options);
  return memory.stats().peak_bytes - before;
}

}  // namespace nemocube
