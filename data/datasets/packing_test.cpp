#include "data/datasets/packing.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/rng.h"
#include "data/datasets/row.h"

using namespace nemocube;

namespace {

using Ids = std::vector<std::int64_t>;
using Packs = std::vector<Ids>;
constexpr std::int64_t x = ignored_label;

/// Rows of the given lengths after the shift, ids 1, 2, 3, ... through all of them; every position is a
/// target whose label is its id + 100.
class Counting final : public Dataset {
 public:
  Counting(Ids lengths, std::int64_t padding = 0) : lengths_(std::move(lengths)), padding_(padding) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(lengths_.size()); }
  Sample sample(std::int64_t i) const override {
    Sample sample;
    sample.id = std::string(1, static_cast<char>('a' + i));
    std::int64_t id = 1;
    for (std::int64_t j = 0; j < i; ++j) id += lengths_[static_cast<std::size_t>(j)];
    for (std::int64_t t = 0; t < lengths_[static_cast<std::size_t>(i)]; ++t, ++id) {
      sample.input_ids.push_back(id);
      sample.labels.push_back(id + 100);
    }
    if (!sample.input_ids.empty()) sample.lengths.push_back(sample.positions());
    sample.input_ids.resize(sample.input_ids.size() + static_cast<std::size_t>(padding_), -7);
    sample.labels.resize(sample.input_ids.size(), x);
    return sample;
  }

 private:
  Ids lengths_;
  std::int64_t padding_;
};

}  // namespace

TEST_CASE("packing: the upstream table") {
  for (const std::int64_t padding : {0, 3}) {  // padding of the rows does not get into a pack
    const PackedDataset packs(std::make_shared<Counting>(Ids{3, 4, 2, 5}, padding), {.pack_size = 10});
    REQUIRE(packs.size() == 2);
    const Sample first = packs.sample(0), second = packs.sample(1);
    check_sample(first);
    CHECK(first.id == "a,b,c");
    CHECK(first.input_ids == Ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 0});
    CHECK(first.labels == Ids{101, 102, 103, 104, 105, 106, 107, 108, 109, x});
    CHECK(first.lengths == Ids{3, 4, 2});
    CHECK(second.input_ids == Ids{10, 11, 12, 13, 14, 0, 0, 0, 0, 0});
    CHECK(second.lengths == Ids{5});
  }
}

TEST_CASE("packing: tells which row it has come to") {
  PackOptions options{.pack_size = 10};
  Ids rows;
  options.on_rows = [&](std::int64_t done, std::int64_t total) {
    CHECK(total == 4);
    rows.push_back(done);
  };
  const PackedDataset packs(std::make_shared<Counting>(Ids{3, 4, 2, 5}), options);
  CHECK(rows == Ids{0, 1, 2, 3});
}

TEST_CASE("packing: in order and longest first") {
  const Ids lengths{5, 3, 6, 2, 4};
  CHECK(pack_rows(lengths, Packing::thd, 8) == Packs{{0, 1}, {2, 3}, {4}});
  CHECK(pack_rows(lengths, Packing::neat, 8) == Packs{{2}, {0, 3}, {4, 1}});
  CHECK(pack_rows(Ids{4, 4, 4}, Packing::thd, 8) == Packs{{0, 1}, {2}});  // exactly full stays open
  CHECK(pack_rows(Ids{0, 8, 0}, Packing::neat, 8) == Packs{{1}});
  CHECK(pack_rows(Ids{}, Packing::thd, 8).empty());
}

TEST_CASE("packing: every row once, no pack too full") {
  const RandomStream random(11, "packing");
  Ids lengths;
  for (std::uint64_t i = 0; i < 500; ++i)
    lengths.push_back(1 + static_cast<std::int64_t>(random.below(i, 64)));
  for (const Packing strategy : {Packing::thd, Packing::neat}) {
    Ids seen;
    for (const auto& pack : pack_rows(lengths, strategy, 64)) {
      std::int64_t fill = 0;
      for (const std::int64_t i : pack) {
        fill += lengths[static_cast<std::size_t>(i)];
        seen.push_back(i);
      }
      CHECK(fill <= 64);
    }
    if (strategy == Packing::thd) CHECK(std::ranges::is_sorted(seen));
    std::ranges::sort(seen);
    REQUIRE(seen.size() == 500);
    CHECK(std::ranges::adjacent_find(seen) == seen.end());
  }
}

TEST_CASE("packing: long rows, few packs, none") {
  const auto rows = std::make_shared<Counting>(Ids{3, 9, 2, 5});
  const PackedDataset packs(rows, {.pack_size = 5});
  CHECK(packs.dropped() == 1);
  CHECK(packs.size() == 2);
  CHECK(packs.sample(0).id == "a,c");
  CHECK(PackedDataset(rows, {.pack_size = 5, .max_packs = 1}).size() == 1);
  CHECK_THROWS_WITH_AS(PackedDataset(rows, {.pack_size = 5, .drop_long = false}),
                       "packed sequences: row 'b' has 9 positions, packed_sequence_size is 5", Error);
  CHECK_THROWS_AS(PackedDataset(rows, {.pack_size = 1}), Error);
  CHECK_THROWS_AS(PackedDataset(rows, {.pack_size = 0}), Error);
  CHECK_THROWS_AS(PackedDataset(rows, {.pack_size = 5, .max_packs = 0}), Error);
}
