#include "train/look/report/read_profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "core/error.h"
#include "data/json/json.h"

namespace nemocube::run_report {
namespace {

constexpr std::size_t most_lanes = 128;
constexpr double longest = 1e9;  // seconds; a trace has no longer times

std::int64_t integer_or(const Json& object, const char* key, std::int64_t otherwise) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  return at != object.end() && at->is_number_integer() ? at->get<std::int64_t>() : otherwise;
}

double seconds_of(const Json& event, const char* key) {
  const auto at = event.find(key);
  return at != event.end() && at->is_number() ? at->get<double>() * 1e-6 : std::nan("");
}

/// Events of a rank in the order of their begins, from the last begin of a step on.
std::vector<PipelineEvent> last_step(std::vector<PipelineEvent> events) {
  std::ranges::stable_sort(events, {}, &PipelineEvent::begin);
  std::set<std::tuple<std::string, std::int64_t, std::int64_t>> seen;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < events.size(); ++i)
    if (!seen.emplace(events[i].name, events[i].microbatch, events[i].chunk).second) {
      seen = {{events[i].name, events[i].microbatch, events[i].chunk}};
      begin = i;
    }
  return {events.begin() + static_cast<std::ptrdiff_t>(begin), events.end()};
}

std::map<std::int64_t, std::vector<PipelineEvent>> pipeline_events(const Json& trace) {
  std::map<std::int64_t, std::vector<PipelineEvent>> by_rank;
  for (const Json& event : trace) {
    if (!event.is_object() || event.value("cat", Json()) != "pipeline" || event.value("ph", Json()) != "X")
      continue;
    const Json name = event.value("name", Json());
    PipelineEvent e{name.is_string() ? name.get<std::string>() : ""};
    e.forward = e.name.starts_with("forward");
    e.begin = seconds_of(event, "ts");
    e.seconds = seconds_of(event, "dur");
    if (!(e.forward || e.name.starts_with("backward")) || !(std::abs(e.begin) <= longest) ||
        !(e.seconds >= 0 && e.seconds <= longest))
      continue;
    const Json args = event.value("args", Json::object());
    e.microbatch = integer_or(args, "microbatch", -1);
    e.chunk = integer_or(args, "chunk", 0);
    by_rank[integer_or(event, "pid", 0)].push_back(std::move(e));
  }
  return by_rank;
}

/// The step whose event of category "step" has this moment within; -1 where there is none.
std::int64_t step_at(const Json& trace, double moment) {
  for (const Json& event : trace) {
    if (!event.is_object() || event.value("cat", Json()) != "step") continue;
    const double begin = seconds_of(event, "ts"), seconds = seconds_of(event, "dur");
    if (begin <= moment && moment <= begin + seconds)
      return integer_or(event.value("args", Json::object()), "step", -1);
  }
  return -1;
}

}  // namespace

PipelineProfile read_pipeline_profile(const std::filesystem::path& path) {
  const Json json = read_json_file(path);
  require(json.is_object() && json.contains("traceEvents") && json["traceEvents"].is_array(), path.string(),
          ": want a Chrome trace, an object with a list 'traceEvents'");
  PipelineProfile profile;
  profile.file = path.filename().string();
  double first = std::numeric_limits<double>::infinity(), last = -first;
  for (auto& [rank, events] : pipeline_events(json["traceEvents"])) {
    if (++profile.ranks > most_lanes) continue;
    profile.lanes.push_back({rank, last_step(std::move(events))});
    for (const PipelineEvent& e : profile.lanes.back().events) {
      first = std::min(first, e.begin);
      last = std::max(last, e.begin + e.seconds);
    }
  }
  require(!profile.lanes.empty(), path.string(), ": has no events of category 'pipeline'");
  for (PipelineLane& lane : profile.lanes)
    for (PipelineEvent& e : lane.events) e.begin -= first;
  profile.seconds = last - first;
  profile.step = step_at(json["traceEvents"], first);
  return profile;
}

}  // namespace nemocube::run_report
