#include "train/profile/step_profile.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <utility>

#include "core/cuda/runtime.h"
#include "core/host_name.h"
#include "core/log.h"
#include "core/memory_limit.h"
#include "core/profile.h"
#include "core/version.h"
#include "data/json/json.h"
#include "train/profile/trace_file.h"
#include "train/profile/trace_text.h"

namespace nemocube {
namespace {

constexpr std::size_t events_of_piece = 4096;
constexpr std::int64_t bytes_of_event = 250;  // of text, at most about

using RankSummary = StepProfile::RankSummary;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// "rank 3 (node1, pp 1, tp 0)": the coordinates in dimensions of more than one rank.
std::string name_of_rank(const GridSizes& sizes, int rank) {
  const GridPlace place = place_of(sizes, rank);
  std::string text = cat("rank ", rank, " (", host_name("unknown"));
  const auto add = [&](const char* name, std::int64_t size, std::int64_t coordinate) {
    if (size > 1) text += cat(", ", name, " ", coordinate);
  };
  add("pp", sizes.pp, place.pp);
  add("dp", sizes.dp(), place.dp(sizes));
  add("cp", sizes.cp, place.cp);
  add("tp", sizes.tp, place.tp);
  add("ep", sizes.ep, place.ep);
  return text + ")";
}

/// Of all ranks, in a list.
template <class Value>
Json each(const std::vector<RankSummary>& ranks, Value RankSummary::*value, double unit = 0) {
  Json list = Json::array();
  for (const RankSummary& rank : ranks) {
    if (unit > 0)
      list.push_back(static_cast<double>(rank.*value) * unit);
    else
      list.push_back(rank.*value);
  }
  return list;
}

std::int64_t sum_of(const std::vector<RankSummary>& ranks, std::int64_t RankSummary::*value) {
  std::int64_t sum = 0;
  for (const RankSummary& rank : ranks) sum += rank.*value;
  return sum;
}

RankSummary summary(const trace::Recorded& recorded, const RankClock& clock) {
  RankSummary own{.events = std::ssize(recorded.events), .dropped = recorded.dropped};
  for (const trace::Event& event : recorded.events)
    own.begin = std::min(own.begin, clock.on_rank_0(event.begin));
  if (!recorded.events.empty()) {
    const std::int64_t time = recorded.events.front().begin;
    own.clock_offset = clock.on_rank_0(time) - time;
  }
  own.clock_uncertainty = clock.uncertainty();
  return own;
}

std::string seconds_text(double seconds) {
  std::ostringstream out;
  out << std::setprecision(3) << seconds << " s";
  return out.str();
}

std::string clock_text(const std::vector<RankSummary>& ranks) {
  if (ranks.size() == 1) return {};
  const std::int64_t largest = std::ranges::max(ranks, {}, &RankSummary::clock_uncertainty).clock_uncertainty;
  return cat("; clocks of ranks are known within ", seconds_text(static_cast<double>(largest) * 1e-9));
}

}  // namespace

StepProfile::StepProfile(const StepRange& wanted, const RunRanks& ranks, const ProcessGroups* groups,
                         std::filesystem::path run_directory, bool cuda_graphs)
    : wanted_(wanted),
      ranks_(ranks),
      groups_(groups),
      folder_(std::move(run_directory) / "profile"),
      cuda_graphs_(cuda_graphs && ranks.device().is_cuda()) {}

void StepProfile::announce(std::int64_t next, std::int64_t total) const {
  const bool none = wanted_.first >= total || wanted_.last < next;
  if (!ranks_.first() || (!none && wanted_.last < total)) return;
  log_warning("--profile steps=", to_string(wanted_), ": this start does steps ", next, " to ", total - 1,
              none ? ", so there will be no profile" : "; the profile will end there");
}

bool StepProfile::before_step(std::int64_t step) {
  if (clock_ && step > wanted_.last) {
    end();
    return true;
  }
  if (clock_ || step < wanted_.first || step > wanted_.last) return false;
  begin(step);
  return true;
}

void StepProfile::after_step(std::int64_t step, double seconds) {
  const bool first_of_start = steps_seen_++ == 0;
  if (clock_) {
    last_ = step;
    during_.push_back(seconds);
  } else if (!first_of_start && last_ < first_) {  // the first step is cold
    before_.push_back(seconds);
    if (std::ssize(before_) > wanted_.count()) before_.erase(before_.begin());
  }
}

void StepProfile::finish() {
  if (clock_) end();
  if (!ranks_.first() || last_ == wanted_.last) return;
  if (last_ < first_)
    log_warning("--profile steps=", to_string(wanted_),
                ": this start did none of these steps, so there is no profile");
  else
    log_warning("--profile steps=", to_string(wanted_), ": the run ended after step ", last_);
}

std::int64_t StepProfile::bytes_sent() const {
  std::int64_t bytes = 0;
  if (groups_)
    for (const CommStats& stats : ranks_.stats(*groups_)) bytes += stats.bytes_sent;
  return bytes;
}

void StepProfile::begin(std::int64_t step) {
  first_ = step;
  last_ = step - 1;
  if (ranks_.first() && step > wanted_.first)
    log_warning("--profile steps=", to_string(wanted_), ": this start begins with step ", step);
  clock_ = read_clock_of_rank_0(ranks_.world().communicator());
  if (ranks_.device().is_cuda()) cuda::time_zones(true);
  bytes_before_ = bytes_sent();
  trace::start();
}

void StepProfile::end() {
  if (ranks_.device().is_cuda()) collect_zones();
  ranks_.world().wait_for_collectives();
  trace::stop();
  if (ranks_.device().is_cuda()) cuda::time_zones(false);
  const std::int64_t bytes = bytes_sent() - bytes_before_;
  const RankClock clock(*clock_, read_clock_of_rank_0(ranks_.world().communicator()));
  clock_.reset();
  write(trace::take(), bytes, clock);
}

void StepProfile::write(const trace::Recorded& recorded, std::int64_t bytes_sent, const RankClock& clock) {
  const auto start = std::chrono::steady_clock::now();
  Communicator& all = ranks_.world().communicator();
  RankSummary own = summary(recorded, clock);
  own.bytes_sent = bytes_sent;
  if (ranks_.device().is_cuda()) own.device_uncertainty = cuda::device_clock_uncertainty();
  const std::vector<RankSummary> summaries = all.host_all_gather(own);
  TraceText text(all.rank(), clock, std::ranges::min(summaries, {}, &RankSummary::begin).begin);
  std::string lines = text.names(name_of_rank(ranks_.sizes().grid, all.rank()), recorded.rows);
  std::size_t next = 0;
  const auto piece = [&] {
    const std::size_t stop = std::min(recorded.events.size(), next + events_of_piece);
    for (; next < stop; ++next) text.append(lines, recorded.events[next]);
    return std::exchange(lines, {});
  };
  const StorageTime longer(ranks_.world(), sum_of(summaries, &RankSummary::events) * bytes_of_event);
  const std::filesystem::path file = folder_ / cat("steps_", to_string(done()), ".json");
  const TraceFileResult result = write_trace(all, file, other_data(summaries), piece);
  if (!ranks_.first()) return;
  if (!result.problem.empty())
    return log_warning("the profile of steps ", to_string(done()),
                       " is lost, the run goes on: ", result.problem);
  log_info("profile of steps ", to_string(done()), ": ", file.string(), " (open in ui.perfetto.dev)");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  log_info("profile: ", counted(sum_of(summaries, &RankSummary::events), "event"), " of ",
           counted(std::ssize(summaries), "rank"), ", ", bytes_text(result.bytes), ", written in ",
           seconds_text(seconds.count()), clock_text(summaries), "; ", overhead_text());
  if (const std::int64_t dropped = sum_of(summaries, &RankSummary::dropped); dropped > 0)
    log_warning("profile: ", counted(dropped, "event"), " dropped: a rank keeps about ",
                trace::default_most_events, "; profile fewer steps");
}

std::string StepProfile::other_data(const std::vector<RankSummary>& summaries) const {
  Json other{{"program", cat("nemocube ", version())},
             {"steps", to_string(done())},
             {"ranks", summaries.size()},
             {"events", each(summaries, &RankSummary::events)},
             {"dropped_events", each(summaries, &RankSummary::dropped)},
             {"collective_bytes", each(summaries, &RankSummary::bytes_sent)},
             {"clock_offset_seconds", each(summaries, &RankSummary::clock_offset, 1e-9)},
             {"clock_uncertainty_seconds", each(summaries, &RankSummary::clock_uncertainty, 1e-9)},
             {"step_seconds", mean(during_)},
             {"earlier_step_seconds", before_.empty() ? Json() : Json(mean(before_))}};
  if (ranks_.device().is_cuda()) {
    other["device_clock_uncertainty_seconds"] = each(summaries, &RankSummary::device_uncertainty, 1);
    other["cuda_graphs"] = cuda_graphs_;
  }
  return dump_json(other);
}

std::string StepProfile::overhead_text() const {
  const double now = mean(during_);
  if (before_.empty()) return cat("a step took ", seconds_text(now), ", and none before it can be compared");
  const double then = mean(before_);
  std::ostringstream percent;
  percent << std::showpos << std::fixed << std::setprecision(1) << (now / then - 1) * 100;
  return cat("a step took ", seconds_text(now), ", ", seconds_text(then), " in the mean of ",
             counted(std::ssize(before_), "step"), " before (", percent.str(), " %)");
}

}  // namespace nemocube
