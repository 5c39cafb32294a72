#pragma once
#include <vector>

#include "train/checkpoint/run_state.h"
#include "train/model_io/model_io.h"
#include "train/optimizer/optimizer.h"

namespace nemocube {

/// What a checkpoint is to hold, as far as this rank writes it: the state of a run between two steps.
struct Snapshot {
  std::vector<NamedTensor> weights;  ///< all of the model; those that other ranks write may be meta tensors
  const WeightFiles* files = nullptr;
  DType dtype = DType::f32;                  ///< of the model
  std::vector<StateTensor> optimizer_state;  ///< written_state()
  RunState state;

  std::int64_t bytes() const;  ///< of tensors with values
};

/// Tensors share the memory of model and optimizer. All ranks call together.
Snapshot snapshot_of(const LoadedModel& model, const Optimizer& optimizer, const RunState& state,
                     Communicator* ranks = nullptr);
/// The same in memory of the host that nothing else uses.
Snapshot copy_of(Snapshot snapshot);

}  // namespace nemocube
