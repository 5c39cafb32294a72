#include "core/shard.h"

#include <doctest/doctest.h>

#include <random>

using namespace nemocube;

namespace {

// The kept elements by looking at every global element: whether its coordinates lie in the ranges.
std::vector<std::int64_t> kept_elements(const Shape& global, const std::vector<std::vector<Range>>& ranges) {
  std::vector<std::int64_t> kept;
  for (std::int64_t i = 0; i < global.numel(); ++i) {
    std::int64_t rest = i;
    bool in = true;
    for (int d = global.ndim() - 1; d >= 0; --d) {
      const std::int64_t at = rest % global[d];
      rest /= global[d];
      bool found = false;
      for (const Range& r : ranges[static_cast<std::size_t>(d)]) found |= at >= r.begin && at < r.end;
      in &= found;
    }
    if (in) kept.push_back(i);
  }
  return kept;
}

std::vector<std::int64_t> elements_of(const Shard& shard) {
  std::vector<std::int64_t> elements;
  shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
    CHECK(local == static_cast<std::int64_t>(elements.size()));
    for (std::int64_t i = 0; i < count; ++i) elements.push_back(global + i);
  });
  return elements;
}

std::vector<Range> random_ranges(std::mt19937& random, std::int64_t entries) {
  std::vector<Range> ranges;
  std::int64_t at = 0;
  while (at < entries) {
    const std::int64_t begin = at + static_cast<std::int64_t>(random() % 3);
    const std::int64_t end = std::min<std::int64_t>(entries, begin + static_cast<std::int64_t>(random() % 4));
    if (begin >= end) break;
    ranges.push_back({begin, end});
    at = end;
  }
  return ranges;
}

}  // namespace

TEST_CASE("shard: random cuts keep the elements of their ranges, in order") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::int64_t> dims(random() % 4);
    for (std::int64_t& d : dims) d = static_cast<std::int64_t>(random() % 7);
    const Shape global{std::span<const std::int64_t>(dims)};
    Shard shard(global);
    std::vector<std::vector<Range>> ranges;
    for (int d = 0; d < global.ndim(); ++d) {
      ranges.push_back({{0, global[d]}});
      if (random() % 2) continue;
      ranges.back() = random_ranges(random, global[d]);
      shard = shard.cut(d, ranges.back());
    }
    std::vector<std::int64_t> want = kept_elements(global, ranges);
    CHECK(elements_of(shard) == want);
    CHECK(shard.numel() == static_cast<std::int64_t>(want.size()));
    CHECK(shard.shape().numel() == shard.numel());

    const auto begin = static_cast<std::int64_t>(random() % (want.size() + 1));
    const std::int64_t end =
        begin + static_cast<std::int64_t>(random() % (want.size() + 1 - static_cast<std::size_t>(begin)));
    const Shard flat = shard.flat({begin, end});
    CHECK(elements_of(flat) == std::vector(want.begin() + begin, want.begin() + end));
    CHECK(flat.numel() == end - begin);
    CHECK(flat.shape() == shard.shape());
  }
}

TEST_CASE("shard: runs are as long as they can be") {
  const Shard rows = Shard({6, 4, 5}).cut(0, {{1, 3}, {4, 6}});
  std::vector<std::int64_t> runs;
  rows.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
    runs.insert(runs.end(), {local, global, count});
  });
  CHECK(runs == std::vector<std::int64_t>{0, 20, 40, 40, 80, 40});
  CHECK(Shard({6, 4}).cut(0, {{1, 3}, {3, 5}}) == Shard({6, 4}).cut(0, Range{1, 5}));
  CHECK(Shard({6, 4}).whole());
  CHECK_FALSE(Shard({6, 4}).cut(1, Range{0, 3}).whole());
  CHECK(Shard(Shape{}).numel() == 1);
}

TEST_CASE("shard: entries that a flat range leaves out take no time") {
  constexpr std::int64_t rows = std::int64_t{1} << 40;
  const Shard column = Shard({rows, 2, 3}).cut(1, Range{1, 2});
  for (const Range kept : {Range{1, 5}, Range{3 * rows - 5, 3 * rows}, Range{7, 7}}) {
    std::vector<std::int64_t> runs;
    column.flat(kept).for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
      runs.insert(runs.end(), {local, global, count});
    });
    if (kept.begin == 1) CHECK(runs == std::vector<std::int64_t>{0, 4, 2, 2, 9, 2});
    if (kept.end == 3 * rows)
      CHECK(runs == std::vector<std::int64_t>{0, 6 * rows - 8, 2, 2, 6 * rows - 3, 3});
    if (kept.begin == 7) CHECK(runs.empty());
  }
}

TEST_CASE("shard: ranges that do not exist") {
  const Shard whole(Shape{6, 4});
  CHECK_THROWS_AS(whole.cut(2, Range{0, 1}), std::logic_error);
  CHECK_THROWS_AS(whole.cut(0, Range{5, 7}), std::logic_error);
  CHECK_THROWS_AS(whole.cut(0, {{2, 4}, {3, 5}}), std::logic_error);
  CHECK_THROWS_AS(whole.cut(0, Range{0, 3}).cut(0, Range{0, 2}), std::logic_error);
  CHECK_THROWS_AS(whole.flat({20, 25}), std::logic_error);
  CHECK_THROWS_AS(whole.flat({0, 4}).cut(0, Range{0, 3}), std::logic_error);
}
