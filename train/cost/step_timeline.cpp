#include "train/cost/step_timeline.h"

#include <algorithm>
#include <cctype>
#include <iomanip>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "core/cuda/runtime.h"
#include "core/environment.h"
#include "core/error.h"
#include "parallel/schedule/simulate.h"

namespace nemocube {
namespace {

constexpr std::string_view forward_zone = "step/forward", backward_zone = "step/backward";

/// Behind the name of a zone: " 2" or " 2 > matmul" is 2; the first chunk has no number.
std::size_t chunk_of(const std::string& rest) {
  return rest.size() > 1 && std::isdigit(static_cast<unsigned char>(rest[1])) ? std::stoul(rest.substr(1))
                                                                              : 0;
}

StepTimeline::DeviceSeconds device_of(const nlohmann::json& device) {
  StepTimeline::DeviceSeconds d;
  d.computing = device.at("computing");
  d.communicating = device.at("communicating");
  d.waiting = device.at("waiting");
  d.copying = device.at("copying");
  d.host = device.at("host");
  d.passes_begin = std::numeric_limits<double>::infinity();
  for (const auto& [range, sum] : device.at("ranges").items()) {
    const bool forward = range.starts_with(forward_zone), backward = range.starts_with(backward_zone);
    if (!forward && !backward) continue;
    const double seconds = sum.at("seconds");
    (forward ? d.forward : d.backward) += seconds;
    const std::size_t chunk = chunk_of(range.substr((forward ? forward_zone : backward_zone).size()));
    if (d.chunks.size() <= chunk) d.chunks.resize(chunk + 1);
    d.chunks[chunk] += seconds;
    d.passes_begin = std::min(d.passes_begin, sum.at("begin").get<double>());
    d.passes_end = std::max(d.passes_end, sum.at("end").get<double>());
  }
  return d;
}

/// The ranks of a stage follow each other.
StepTimeline::Bubble bubble_of(const std::vector<StepTimeline::DeviceSeconds>& ranks,
                               const PipelinePlan& pipeline, std::int64_t pp, std::int64_t microbatches) {
  const std::int64_t of_stage = std::ssize(ranks) / pp;
  double begin = std::numeric_limits<double>::infinity(), end = 0, forward = 0, backward = 0;
  std::vector<std::vector<double>> chunks(static_cast<std::size_t>(pp));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    begin = std::min(begin, ranks[r].passes_begin);
    end = std::max(end, ranks[r].passes_end);
    forward += ranks[r].forward;
    backward += ranks[r].backward;
    std::vector<double>& sums = chunks[static_cast<std::size_t>(static_cast<std::int64_t>(r) / of_stage)];
    sums.resize(std::max(sums.size(), ranks[r].chunks.size()));
    for (std::size_t c = 0; c < ranks[r].chunks.size(); ++c) sums[c] += ranks[r].chunks[c];
  }
  const double ratio = backward / forward;
  ActionCosts costs{
      .forward = 1, .backward = ratio, .backward_input = ratio / 2, .backward_weight = ratio / 2};
  std::vector<std::size_t> next(
      static_cast<std::size_t>(pp));  // the stages of a rank are its chunks, in their order
  for (const std::int64_t rank : pipeline.rank_of_stage) {
    const auto position = static_cast<std::size_t>(rank);
    const std::size_t chunk = next[position]++;
    require(chunk < chunks[position].size(), "a timeline: no pass of chunk ", chunk, " of pipeline rank ",
            rank);
    costs.stages.push_back(chunks[position][chunk] / (1 + ratio));
  }
  const std::vector<double> idle = simulate(pipeline.schedule(pp, microbatches), costs).idle;
  return {1 - (forward + backward) / (static_cast<double>(ranks.size()) * (end - begin)),
          std::accumulate(idle.begin(), idle.end(), 0.0) / static_cast<double>(idle.size())};
}

}  // namespace

bool timeline_is_recorded() {
  const char* const folder = environment_variable("CUDA_EMULATOR_TIMELINE");
  return folder && *folder;
}

void record_timeline(Communicator& all, const std::function<void()>& step) {
  cuda::synchronize();
  all.host_barrier();
  cuda::start_profiler();
  step();
  cuda::synchronize();
  cuda::stop_profiler();
  all.host_barrier();
}

StepTimeline read_step_timeline(const PipelinePlan& pipeline, std::int64_t pp, std::int64_t microbatches) {
  return parse_step_timeline(cuda::timeline_summary(), pipeline, pp, microbatches);
}

StepTimeline parse_step_timeline(std::string_view json, const PipelinePlan& pipeline, std::int64_t pp,
                                 std::int64_t microbatches) {
  StepTimeline timeline;
  try {
    const nlohmann::json all = nlohmann::json::parse(json);
    timeline.seconds = all.at("seconds");
    timeline.exposed = all.at("exposed_seconds");
    timeline.least_exposed = all.at("least_exposed_seconds");
    for (const nlohmann::json& device : all.at("devices")) timeline.ranks.push_back(device_of(device));
  } catch (const nlohmann::json::exception& error) {
    fail("a timeline: not a summary of the software GPU: ", error.what());
  }
  if (pp > 1) {
    require(std::ssize(timeline.ranks) % pp == 0, "a timeline: want records of the ranks of ", pp,
            " stages, got ", timeline.ranks.size());
    timeline.bubble = bubble_of(timeline.ranks, pipeline, pp, microbatches);
  }
  return timeline;
}

std::string to_string(const StepTimeline& t) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3);
  const auto milliseconds = [](double seconds) { return 1e3 * seconds; };
  text << "estimated for GPUs (tools/cuda_emulator/timeline/TIMELINE.md), in ms:\n"
       << "  step " << milliseconds(t.seconds) << ", of it communication exposes " << milliseconds(t.exposed)
       << "; dependencies and rates allow no less than " << milliseconds(t.least_exposed) << '\n';
  if (t.bubble)
    text << "  pipeline: ranks idle for " << 100 * t.bubble->share
         << " % of the passes, by the simulated schedule " << 100 * t.bubble->of_schedule << " %\n";
  text << "  rank     computing  communicating  waiting for ranks       copying  waiting for the host, or "
          "done\n";
  for (std::size_t r = 0; r < t.ranks.size(); ++r) {
    const StepTimeline::DeviceSeconds& d = t.ranks[r];
    text << "  " << std::left << std::setw(6) << r << std::right << std::setw(12) << milliseconds(d.computing)
         << std::setw(15) << milliseconds(d.communicating) << std::setw(19) << milliseconds(d.waiting)
         << std::setw(14) << milliseconds(d.copying) << std::setw(31) << milliseconds(d.host) << '\n';
  }
  return text.str();
}

}  // namespace nemocube
