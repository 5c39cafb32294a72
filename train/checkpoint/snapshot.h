#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "train/checkpoint/run_state.h"
#include "train/model_io/model_io.h"
#include "train/optimizer/optimizer.h"

namespace nemocube {

/// This rank's part of a checkpoint to be written: the state of a run between two steps.
struct Snapshot {
  /// All tensors of the model, or of its adapters where a run trains adapters alone. Tensors that other ranks
  /// write may be meta tensors.
  std::vector<NamedTensor> weights;
  std::shared_ptr<const WeightFiles> files;
  LoraAdapters adapters;                     ///< that `weights` are; no modules: `weights` are the model
  ModelNames names = {};                     ///< of the model
  std::string base, settings;                ///< of adapters: their model, and automodel_peft_config.json
  std::optional<ModelRecord> base_record;    ///< of `base`
  DType dtype = DType::f32;                  ///< of the model
  std::vector<StateTensor> optimizer_state;  ///< written_state()
  RunState state;

  std::int64_t bytes() const;  ///< of tensors with values
};

/// Tensors share the memory of model and optimizer. All ranks call together.
/// with_frozen: see CheckpointSection::save_frozen.
Snapshot snapshot_of(const LoadedModel& model, const Optimizer& optimizer, const RunState& state,
                     Communicator* ranks = nullptr, bool with_frozen = true);
/// A copy of the snapshot in host memory of its own.
Snapshot copy_of(Snapshot snapshot);

}  // namespace nemocube
