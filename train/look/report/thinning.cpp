#include "train/look/report/thinning.h"

#include <algorithm>

#include "core/error.h"

namespace nemocube::run_report {

void ThinnedPoints::join(Run& run, const Run& next) {
  const bool lower = next.low.y<run.low.y, higher = next.high.y> run.high.y;
  if (lower && higher)
    run.low_first = next.low_first;
  else if (lower || higher)
    run.low_first = higher;
  if (lower) run.low = next.low;
  if (higher) run.high = next.high;
  run.count += next.count;
}

void ThinnedPoints::halve() {
  std::vector<Run> halved;
  for (std::size_t i = 0; i < runs_.size(); ++i)
    if (i % 2 == 0)
      halved.push_back(runs_[i]);
    else
      join(halved.back(), runs_[i]);
  runs_ = std::move(halved);
  run_length_ *= 2;
}

void ThinnedPoints::add(Point point) {
  if (!first_) first_ = point;
  last_ = point;
  ++count_;
  const Run alone{point, point, true, 1};
  if (!runs_.empty() && runs_.back().count < run_length_) return join(runs_.back(), alone);
  runs_.push_back(alone);
  while (runs_.size() > most_runs()) halve();
}

std::vector<Point> ThinnedPoints::points() const {
  std::vector<Point> all;
  const auto add_point = [&](Point p) {
    if (all.empty() || all.back() != p) all.push_back(p);
  };
  if (first_) all.push_back(*first_);
  for (const Run& run : runs_) {
    add_point(run.low_first ? run.low : run.high);
    if (run.low != run.high) add_point(run.low_first ? run.high : run.low);
  }
  if (last_) add_point(*last_);
  return all;
}

std::optional<Point> ThinnedPoints::lowest() const {
  if (runs_.empty()) return std::nullopt;
  return std::ranges::min_element(runs_, {}, [](const Run& run) { return run.low.y; })->low;
}

std::optional<Point> ThinnedPoints::highest() const {
  if (runs_.empty()) return std::nullopt;
  return std::ranges::max_element(runs_, {}, [](const Run& run) { return run.high.y; })->high;
}

void RunMeans::add(double x, const std::vector<double>& values) {
  if (!sums_.empty() && sums_.back().count < run_length_) {
    Mean& sum = sums_.back();
    expect(sum.values.size() == values.size(), "RunMeans: ", values.size(), " values");
    for (std::size_t i = 0; i < values.size(); ++i) sum.values[i] += values[i];
    sum.last_x = x;
    ++sum.count;
    return;
  }
  sums_.push_back({x, x, values, 1});
  if (sums_.size() <= most_) return;
  std::vector<Mean> halved;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (i % 2 == 0) {
      halved.push_back(std::move(sums_[i]));
      continue;
    }
    Mean& sum = halved.back();
    for (std::size_t k = 0; k < sum.values.size(); ++k) sum.values[k] += sums_[i].values[k];
    sum.last_x = sums_[i].last_x;
    sum.count += sums_[i].count;
  }
  sums_ = std::move(halved);
  run_length_ *= 2;
}

std::vector<RunMeans::Mean> RunMeans::means() const {
  std::vector<Mean> all = sums_;
  for (Mean& mean : all)
    for (double& value : mean.values) value /= static_cast<double>(mean.count);
  return all;
}

}  // namespace nemocube::run_report
