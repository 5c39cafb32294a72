#include "core/shard.h"

namespace nemocube {

Shard::Shard(const Shape& global) : global_(global) {
  for (const std::int64_t entries : global.dims()) ranges_.push_back({{0, entries}});
}

Shard Shard::cut(int dim, const std::vector<Range>& ranges) const {
  expect(dim >= 0 && dim < global_.ndim(), "shard: dimension ", dim, " of ", global_);
  expect(!flat_, "shard: dimension ", dim, " of ", global_, " cut after a flat range");
  auto& own = ranges_[static_cast<std::size_t>(dim)];
  expect(own.size() == 1 && own[0] == Range{0, global_[dim]}, "shard: dimension ", dim, " of ", global_,
         " is cut already");
  Shard part = *this;
  auto& kept = part.ranges_[static_cast<std::size_t>(dim)];
  kept.clear();
  std::int64_t at = 0;
  for (const Range& range : ranges) {
    expect(range.begin >= at && range.end >= range.begin && range.end <= global_[dim], "shard: range [",
           range.begin, ", ", range.end, ") of dimension ", dim, " of ", global_, " after entry ", at);
    at = range.end;
    if (range.size() == 0) continue;
    if (!kept.empty() && kept.back().end == range.begin)
      kept.back().end = range.end;
    else
      kept.push_back(range);
  }
  return part;
}

Shard Shard::flat(Range elements) const {
  const std::int64_t count = shape().numel();
  expect(!flat_ && elements.begin >= 0 && elements.end >= elements.begin && elements.end <= count,
         "shard: flat range [", elements.begin, ", ", elements.end, ") of ", count, " elements",
         flat_ ? ", which has a flat range" : "");
  Shard part = *this;
  part.flat_ = elements;
  return part;
}

Shape Shard::shape() const {
  Shape shape = global_;
  for (int d = 0; d < shape.ndim(); ++d) {
    shape[d] = 0;
    for (const Range& range : ranges_[static_cast<std::size_t>(d)]) shape[d] += range.size();
  }
  return shape;
}

}  // namespace nemocube
