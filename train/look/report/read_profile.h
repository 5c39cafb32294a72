#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nemocube::run_report {

/// One action of a pipeline rank in a step.
struct PipelineEvent {
  std::string name;  ///< "forward", "backward ..."
  bool forward = true;
  std::int64_t microbatch = -1, chunk = 0;  ///< -1: the profile does not say
  double begin = 0, seconds = 0;            ///< begin counts from the first event of the step
};
struct PipelineLane {
  std::int64_t rank = 0;
  std::vector<PipelineEvent> events;  ///< by their begin
};

/// The pipeline events of one step, by rank.
struct PipelineProfile {
  std::string file;  ///< name of the profile's file
  std::vector<PipelineLane> lanes;
  std::size_t ranks = 0;   ///< of the profile; the first 128 have lanes
  std::int64_t step = -1;  ///< -1: the profile does not say
  double seconds = 0;      ///< from the first begin to the last end
};

/// The last step of a profile that `train --profile` has written, a Chrome trace: its events of category
/// "pipeline" whose name begins with "forward" or "backward". A rank's step ends where an action comes again.
/// Throws Error naming the file when it cannot be read, is no trace, or has no such event.
PipelineProfile read_pipeline_profile(const std::filesystem::path& path);

}  // namespace nemocube::run_report
