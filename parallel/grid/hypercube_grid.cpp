#include "parallel/grid/hypercube_grid.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace nemocube {
namespace {

constexpr std::int64_t most_ranks = std::numeric_limits<int>::max();

std::string joined(const std::vector<std::string>& names, const char* between = ",") {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : between) + name;
  return text;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// The first name that occurs twice; null when all differ.
const std::string* repeated(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<std::ptrdiff_t>(i))
      return &names[i];
  return nullptr;
}

std::vector<std::string> names_of(std::span<const GridDimension> dimensions) {
  std::vector<std::string> names;
  for (const GridDimension& d : dimensions) names.push_back(d.name);
  return names;
}

/// Checks names and sizes and returns the product of the sizes.
std::int64_t checked_size(const std::string& what, std::span<const GridDimension> dimensions) {
  require(!dimensions.empty(), what, ": want at least one dimension, found none");
  std::int64_t size = 1;
  for (const GridDimension& d : dimensions) {
    require(!d.name.empty(), what, ": a dimension has an empty name in ", to_string(dimensions));
    require(d.size >= 1, what, ": want a size of at least 1 for dimension '", d.name, "', found ", d.size);
    require(d.size <= most_ranks / size, what, ": ", to_string(dimensions), " has more than ", most_ranks,
            " ranks");
    size *= d.size;
  }
  const auto names = names_of(dimensions);
  if (const std::string* twice = repeated(names))
    fail(what, ": dimension '", *twice, "' occurs twice in ", to_string(dimensions));
  return size;
}

}  // namespace

std::int64_t RankGroups::offset_at(const Axes& axes, std::int64_t index) {
  std::int64_t offset = 0;
  for (const Axis& axis : axes) {
    offset += index % axis.size * axis.stride;
    index /= axis.size;
  }
  return offset;
}

std::int64_t RankGroups::index_along(const Axes& axes, int rank) const {
  std::int64_t index = 0, radix = 1;
  for (const Axis& axis : axes) {
    index += (rank - offset_) / axis.stride % axis.size * radix;
    radix *= axis.size;
  }
  return index;
}

// Drops axes of size 1, and joins an axis to the one before when it continues where that one ends. Two lists
// of axes enumerate the same numbers in the same order exactly when their merged lists are equal.
RankGroups::Axes RankGroups::merged(const Axes& axes) {
  Axes out;
  for (const Axis& axis : axes) {
    if (axis.size == 1) continue;
    if (!out.empty() && axis.stride == out.back().size * out.back().stride)
      out.back().size *= axis.size;
    else
      out.push_back(axis);
  }
  return out;
}

int RankGroups::rank(std::int64_t group, std::int64_t position) const {
  expect(group >= 0 && group < count_, "group ", group, " of ", count_, " groups of ", name_);
  expect(position >= 0 && position < size_, "position ", position, " in a group of ", size_, " ranks");
  return static_cast<int>(offset_ + offset_at(outside_, group) + offset_at(inside_, position));
}

std::vector<int> RankGroups::ranks(std::int64_t group) const {
  std::vector<int> ranks;
  for (std::int64_t i = 0; i < size_; ++i) ranks.push_back(rank(group, i));
  return ranks;
}

std::int64_t RankGroups::group_of(int rank) const {
  expect(rank >= offset_ && rank < offset_ + count_ * size_, "rank ", rank, " is outside the grid");
  return index_along(outside_, rank);
}

std::int64_t RankGroups::position_of(int rank) const {
  expect(rank >= offset_ && rank < offset_ + count_ * size_, "rank ", rank, " is outside the grid");
  return index_along(inside_, rank);
}

bool operator==(const RankGroups& a, const RankGroups& b) {
  return a.offset_ == b.offset_ && RankGroups::merged(a.inside_) == RankGroups::merged(b.inside_) &&
         RankGroups::merged(a.outside_) == RankGroups::merged(b.outside_);
}

HypercubeGrid::HypercubeGrid(std::vector<GridDimension> dimensions, std::int64_t offset, std::int64_t world)
    : offset_(offset), size_(checked_size("grid", dimensions)) {
  require(offset >= 0, "grid: want an offset of 0 or more, found ", offset);
  require(world >= 1 && world <= most_ranks, "grid: want a world of 1 to ", most_ranks, " ranks, found ",
          world);
  require(offset <= world && size_ <= world - offset, "grid: ", to_string(dimensions),
          " is over sized: ", size_, " ranks from offset ", offset, ", but the world has ", world);
  views_.emplace(base, View{std::move(dimensions), {}});
}

const HypercubeGrid::View& HypercubeGrid::view(const std::string& name) const {
  const auto found = views_.find(name);
  if (found != views_.end()) return found->second;
  std::string known;
  for (const auto& [other, ignored] : views_) known += (known.empty() ? "" : ", ") + other;
  fail("grid: no view '", name, "' (there are: ", known, ")");
}

std::span<const GridDimension> HypercubeGrid::dimensions(const std::string& name) const {
  return view(name).dimensions;
}

void HypercubeGrid::add_view(const std::string& name, std::vector<GridDimension> dimensions,
                             const std::vector<std::string>& shared) {
  const std::string what = cat("grid view '", name, "'");
  require(!name.empty(), "grid: a view needs a name");
  require(!views_.contains(name), what, ": the name is taken");
  const std::int64_t size = checked_size(what, dimensions);
  require(size == size_, what, ": ", to_string(dimensions), " has size ", size, ", but the grid size is ",
          size_);
  if (const std::string* twice = repeated(shared))
    fail(what, ": shared dimension '", *twice, "' is named twice");
  const View& whole = view(base);
  for (const std::string& dimension : shared) {
    require(has(names_of(whole.dimensions), dimension), what, ": shared dimension '", dimension,
            "' is not in view 'base' (", to_string(whole.dimensions), ")");
    require(has(names_of(dimensions), dimension), what, ": shared dimension '", dimension, "' is not in ",
            to_string(dimensions));
  }
  const View added{std::move(dimensions), shared};
  const auto want_same = [&](const std::vector<std::string>& subset) {
    const RankGroups mine = enumerate(added, name, subset), theirs = enumerate(whole, base, subset);
    require(mine == theirs, what, ": shared ", joined(subset),
            " must give the same groups in both views, found ", to_string(mine), " here and ",
            to_string(theirs), " in view 'base'");
  };
  for (const std::string& dimension : shared) want_same({dimension});
  if (shared.size() > 1) want_same(shared);
  views_.emplace(name, added);
}

std::vector<std::int64_t> HypercubeGrid::coordinates(int rank, const std::string& name) const {
  require(contains(rank), "grid: rank ", rank, " is not in [", offset_, ", ", offset_ + size_, ")");
  std::vector<std::int64_t> coordinates;
  std::int64_t rest = rank - offset_;
  for (const GridDimension& d : view(name).dimensions) {
    coordinates.push_back(rest % d.size);
    rest /= d.size;
  }
  return coordinates;
}

RankGroups HypercubeGrid::groups(const std::vector<std::string>& subset, const std::string& name) const {
  const View& from = view(name);
  require(!subset.empty(), "grid: want at least one dimension for a group, found none");
  if (const std::string* twice = repeated(subset))
    fail("grid: dimension '", *twice, "' is named twice in ", joined(subset));
  for (const std::string& dimension : subset)
    require(has(names_of(from.dimensions), dimension), "grid: '", dimension, "' is not in view '", name,
            "' (", to_string(from.dimensions), ")");
  const bool all_shared =
      std::ranges::all_of(subset, [&](const std::string& dimension) { return has(from.shared, dimension); });
  return all_shared ? enumerate(view(base), base, subset) : enumerate(from, name, subset);
}

RankGroups HypercubeGrid::enumerate(const View& from, const std::string& view_name,
                                    const std::vector<std::string>& subset) const {
  RankGroups groups;
  groups.offset_ = offset_;
  std::vector<std::string> slowest_first;
  std::int64_t stride = 1;
  for (const GridDimension& d : from.dimensions) {
    const bool inside = has(subset, d.name);
    (inside ? groups.inside_ : groups.outside_).push_back({d.size, stride});
    (inside ? groups.size_ : groups.count_) *= d.size;
    if (inside) slowest_first.insert(slowest_first.begin(), d.name);
    stride *= d.size;
  }
  groups.name_ = (view_name == base ? "" : view_name + ":") + joined(slowest_first, "-");
  return groups;
}

std::string to_string(const RankGroups& groups, std::int64_t most) {
  std::string text;
  const std::int64_t all = groups.count() * groups.size();
  for (std::int64_t i = 0; i < std::min(all, most); ++i) {
    const std::int64_t group = i / groups.size(), position = i % groups.size();
    text += position > 0 ? ", " : group > 0 ? "] [" : "[";
    text += std::to_string(groups.rank(group, position));
  }
  return text + (all > most ? " ..." : "]");
}

std::string to_string(std::span<const GridDimension> dimensions) {
  std::string text;
  for (const GridDimension& d : dimensions) text += cat(text.empty() ? "" : ",", d.name, "=", d.size);
  return text;
}

}  // namespace nemocube
