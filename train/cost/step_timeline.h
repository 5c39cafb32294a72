#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/parallel_model/pipeline_plan.h"

namespace nemocube {

/// The software GPU's estimate of a step on real GPUs
/// (tools/cuda_emulator/timeline/TIMELINE.md). All in seconds.
struct StepTimeline {
  double seconds = 0;        ///< of the step
  double exposed = 0;        ///< more than with communication that takes no time
  double least_exposed = 0;  ///< the same at least, by dependencies and rates

  /// How a device spends the step.
  struct DeviceSeconds {
    double computing = 0, communicating = 0, waiting = 0, copying = 0, host = 0;
    double forward = 0, backward = 0;  ///< of `computing`, in the passes of all microbatches
    std::vector<double> chunks;        ///< of the sum of both, in each chunk of the rank
    double passes_begin = 0, passes_end = 0;
  };
  std::vector<DeviceSeconds> ranks;

  /// In a pipeline: the share of the ranks' time, between the first pass and the last, in which ranks
  /// compute nothing; and the same by a simulation of the schedule (parallel/schedule/simulate.h)
  /// with the mean times of each stage's passes.
  struct Bubble {
    double share = 0, of_schedule = 0;
  };
  std::optional<Bubble> bubble;
};

/// Whether the program runs under `tools/cuda_emulator/run --timeline`.
bool timeline_is_recorded();

/// All ranks: does `step` alone within the timeline.
void record_timeline(Communicator& all, const std::function<void()>& step);

/// The recorded timeline, on the calling rank; all other ranks must have left record_timeline().
StepTimeline read_step_timeline(const PipelinePlan& pipeline, std::int64_t pp, std::int64_t microbatches);
/// The same from the software GPU's JSON. Throws Error when it is something else.
StepTimeline parse_step_timeline(std::string_view json, const PipelinePlan& pipeline, std::int64_t pp,
                                 std::int64_t microbatches);

/// Lines for `bench step`.
std::string to_string(const StepTimeline& timeline);

}  // namespace nemocube
