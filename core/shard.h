#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/range.h"
#include "core/tensor.h"

namespace nemocube {

/// The part of a global tensor that one process holds.
///
/// Each dimension keeps a list of ascending, disjoint ranges; usually one. Several ranges are needed where
/// one dimension stacks things that are cut separately, as the rows z, x, B, C and dt of Mamba's in_proj.
/// Local elements are the elements of the ranges, in row-major order. A flat range keeps only some of the
/// local elements, regardless of dimensions (sharded data parallelism).
class Shard {
 public:
  Shard() = default;
  explicit Shard(const Shape& global);  ///< the whole tensor

  /// The same with only `ranges` of dimension `dim`; the ranges are global entries.
  /// errors  std::logic_error for a dimension that is cut already, for ranges that overlap, descend or leave
  ///         the dimension, and after flat()
  Shard cut(int dim, const std::vector<Range>& ranges) const;
  Shard cut(int dim, Range range) const { return cut(dim, std::vector{range}); }
  /// The same with only `elements` of the local elements; std::logic_error for elements that do not exist.
  Shard flat(Range elements) const;

  const Shape& global_shape() const { return global_; }
  /// Of the local tensor, before the flat range.
  Shape shape() const;
  const std::vector<std::vector<Range>>& ranges() const { return ranges_; }  ///< of each dimension
  const std::optional<Range>& flat_range() const { return flat_; }
  std::int64_t numel() const { return flat_ ? flat_->size() : shape().numel(); }  ///< elements that are kept
  bool whole() const { return numel() == global_.numel(); }

  /// Calls run(local, global, count) for each longest run of elements that are neighbours both in the kept
  /// elements (from position `local`) and in the global tensor (from row-major index `global`), in order.
  template <class Run>
  void for_each_run(Run&& run) const;

  bool operator==(const Shard&) const = default;

 private:
  Shape global_;
  std::vector<std::vector<Range>> ranges_;  // of each dimension
  std::optional<Range> flat_;
};

template <class Run>
void Shard::for_each_run(Run&& run) const {
  if (global_.numel() == 0) return;
  const Range kept = flat_.value_or(Range{0, shape().numel()});
  // Dimensions from `inner` on are whole; runs lie along dimension inner - 1.
  int inner = global_.ndim();
  std::int64_t width = 1;
  while (inner > 0 &&
         ranges_[static_cast<std::size_t>(inner - 1)] == std::vector{Range{0, global_[inner - 1]}})
    width *= global_[--inner];
  // Entries whose elements are all left out are not visited, so that the time is in proportion to the runs.
  std::array<std::int64_t, Shape::max_dims + 1> entry;  // local elements of an entry of each dimension
  entry[static_cast<std::size_t>(global_.ndim())] = 1;
  const Shape own = shape();
  for (int d = global_.ndim() - 1; d >= 0; --d)
    entry[static_cast<std::size_t>(d)] =
        d + 1 < global_.ndim() ? entry[static_cast<std::size_t>(d + 1)] * own[d + 1] : 1;
  std::int64_t local = 0;
  const auto emit = [&](std::int64_t global, std::int64_t count) {
    const std::int64_t begin = std::max(local, kept.begin), end = std::min(local + count, kept.end);
    if (begin < end) run(begin - kept.begin, global + begin - local, end - begin);
    local += count;
  };
  const auto visit = [&](const auto& self, int dim, std::int64_t before) -> void {
    if (dim == inner) return emit(before * width, width);
    for (const Range& range : ranges_[static_cast<std::size_t>(dim)]) {
      if (local >= kept.end) return;
      const std::int64_t first = before * global_[dim] + range.begin;
      if (dim + 1 == inner) {
        emit(first * width, range.size() * width);
        continue;
      }
      const std::int64_t size = entry[static_cast<std::size_t>(dim)];
      std::int64_t i = std::min(range.size(), std::max<std::int64_t>(kept.begin - local, 0) / size);
      local += i * size;
      for (; i < range.size() && local < kept.end; ++i) self(self, dim + 1, first + i);
    }
  };
  visit(visit, 0, 0);
}

}  // namespace nemocube
