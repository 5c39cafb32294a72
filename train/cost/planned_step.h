#pragma once
#include <cstdint>
#include <span>

#include "parallel/planner/step_load.h"
#include "train/optimizer/optimizer.h"
#include "train/step/train_step.h"

namespace nemocube {

/// The steps whose memory is counted, in a run of one rank.
struct PlannedSteps {
  DType dtype = DType::f32;
  OptimizerOptions optimizer = {};
  Sequences microbatch;           ///< the largest one; every row counts as labelled
  std::int64_t microbatches = 1;  ///< of a step
  bool activation_checkpointing = false;
  std::int64_t loss_chunk_rows = 0;  ///< Stack::loss_chunk_rows; 0: its own choice for a CUDA device
  RouterLosses router_losses = {};   ///< the losses that are on
  StepOptions options = {};
};

/// Bytes that the tensors of training steps hold on a CUDA device at their peak, found by running two steps
/// on Device::planned: every allocation of the program's code counts, except the scratch
/// memory of kernels, which is small, and cuBLAS's workspace (cuda::most_product_workspace).
/// Nothing of the size of the model is allocated.
/// errors  as train_step()
std::int64_t planned_peak_bytes(const ModelSetup& setup, const PlannedSteps& steps);

}  // namespace nemocube
