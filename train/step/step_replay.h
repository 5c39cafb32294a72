#pragma once
#include <array>
#include <map>
#include <optional>
#include <string>

#include "train/step/graph_cache.h"
#include "train/step/microbatch_rows.h"
#include "train/step/step_tensors.h"

namespace nemocube {

/// Training steps of one model with one optimizer by CUDA graphs. The passes of a microbatch are one graph,
/// the update is another. A whole step is one graph in a pipeline, where gradients are reduced after each
/// microbatch, and where blocks have their weights or gradients for a while only, in memory that differs from
/// time to time (ZeRO-2 and 3). Steps have the bits of steps without graphs.
///
/// Graphs read and write the same memory each time. This object holds this memory, which lasts from step to
/// step and has the values of the present step.
///
/// Microbatches have a capacity (TokenBatch::with_capacity), the same on all ranks, and each capacity has
/// graphs of its own. Steps of microbatches without capacity, and work that cannot be captured, run as
/// without graphs; a warning says so once.
class StepReplay {
 public:
  /// The model, on a CUDA device, outlives this object.
  explicit StepReplay(ParallelModel& parallel);

  /// Begins a step. `fixed_sizes`: the microbatches of all ranks have a capacity. Returns whether the step
  /// can use graphs. If so, it uses the members below.
  bool begin_step(bool fixed_sizes, double loss_scale);
  const StepTensors& tensors() const { return *tensors_; }  ///< with the values that a step begins with
  const Tensor& loss_scale() const { return loss_scale_; }  ///< [1] f64
  bool whole_steps() const { return whole_steps_; }         ///< a step is one graph
  /// The memory on the device for microbatch `number` of the step, and others of this size, with the values
  /// of `rows`. Where microbatches are graphs, all have the number 0.
  const MicrobatchRows& place(const MicrobatchRows& rows, std::int64_t number = 0);
  GraphCache& graphs() { return graphs_; }

 private:
  ParallelModel& parallel_;
  bool whole_steps_;
  std::string refusal_;  // of all steps
  GraphCache graphs_;
  std::optional<StepTensors> tensors_;
  Tensor loss_scale_;
  std::map<std::array<std::int64_t, 4>, MicrobatchRows> places_;  // by number, rows, sequences, labels
};

}  // namespace nemocube
