#include "data/loader/batch.h"

#include <doctest/doctest.h>

using namespace nemocube;

namespace {
constexpr std::int64_t x = ignored_label;
using Ids = std::vector<std::int64_t>;

Ids values(const Tensor& t) {
  Ids out;
  for (const double v : t.to_vector()) out.push_back(static_cast<std::int64_t>(v));
  return out;
}

const std::vector<Sample> rows{
    {"a", {1, 2, 3}, {x, 3, 4}, {3}}, {"b", {5, 6, 7, 8, 0}, {6, x, 8, x, x}, {2, 2}}, {"c", {9}, {x}, {1}}};
}  // namespace

TEST_CASE("batch: rows padded to the longest") {
  const Batch batch = collate(rows, 77);
  CHECK(batch.input_ids.shape() == Shape{3, 5});
  CHECK(values(batch.input_ids) == Ids{1, 2, 3, 77, 77, 5, 6, 7, 8, 0, 9, 77, 77, 77, 77});
  CHECK(values(batch.labels) == Ids{x, 3, 4, x, x, 6, x, 8, x, x, x, x, x, x, x});
  CHECK(batch.ids == std::vector<std::string>{"a", "b", "c"});
  CHECK(batch.lengths == std::vector<Ids>{{3}, {2, 2}, {1}});
  CHECK(batch.samples == 3);
  CHECK(batch.positions == 15);
  CHECK(batch.content_tokens == 8);
  CHECK(batch.label_tokens == 4);
  CHECK(batch.tail_trimmed_tokens == 3 + 3 + 0);
}

TEST_CASE("batch: trailing runs against the upstream table") {
  const std::vector<Sample> table{{"a", {0, 0, 0, 0, 0}, {x, 1, 1, x, x}, {5}},
                                  {"b", {0, 0, 0, 0, 0}, {x, x, 2, 3, 4}, {5}},
                                  {"c", {0, 0, 0, 0, 0}, {5, 6, x, x, x}, {5}}};
  // The sheet gives 2 + 0 + 3 = 5 trailing positions, so 15 - 5 remain.
  CHECK(collate(table, 0).tail_trimmed_tokens == 10);
}

TEST_CASE("batch: without padding") {
  const TokenBatch tokens = without_padding(collate(rows, 77));
  CHECK(values(tokens.ids) == Ids{1, 2, 3, 5, 6, 7, 8, 9});
  CHECK(values(tokens.labels) == Ids{x, 3, 4, 6, x, 8, x, x});
  CHECK(tokens.sequences.offsets() == Ids{0, 3, 5, 7, 8});
  tokens.sequences.check("batch", 8);
  CHECK(tokens.label_tokens == 4);
}

TEST_CASE("batch: numbered without padding: every token of a row of the data has a number of its own") {
  Batch batch = collate(rows, 77);
  batch.row_numbers = {7, 2, 0};
  const TokenBatch plain = without_padding(batch), tokens = numbered_without_padding({&batch, 1}).at(0);
  CHECK(values(tokens.ids) == values(plain.ids));
  CHECK(values(tokens.labels) == values(plain.labels));
  CHECK(tokens.sequences.offsets() == plain.sequences.offsets());
  CHECK(plain.sequences.numbers().empty());
  constexpr std::int64_t row = std::int64_t{1} << 32;
  // The second row is packed: its documents share the numbers of the row.
  CHECK(tokens.sequences.numbers() == Ids{7 * row, 2 * row, 2 * row + 2, 0});
  CHECK(values(tokens.sequences.row_numbers_on(Device::cpu)) ==
        Ids{7 * row, 7 * row + 1, 7 * row + 2, 2 * row, 2 * row + 1, 2 * row + 2, 2 * row + 3, 0});
  const Batch no_numbers = collate(rows, 77);
  CHECK_THROWS_AS(numbered_without_padding({&no_numbers, 1}), std::out_of_range);
}

TEST_CASE("batch: numbered without padding: the padded length is that of the forward pass") {
  std::vector<Batch> batches;
  for (const std::int64_t width : {3, 5, 2, 4, 1}) {
    Sample sample;
    sample.input_ids.assign(static_cast<std::size_t>(width), 7);
    sample.labels.assign(static_cast<std::size_t>(width), x);
    sample.lengths = {1};  // what is padding in the row itself counts as well
    batches.push_back(collate({&sample, 1}, 0));
    batches.back().row_numbers = {width};
  }
  const auto lengths = [&](std::int64_t of_pass) {
    Ids found;
    for (const TokenBatch& batch : numbered_without_padding(batches, of_pass))
      found.push_back(batch.sequences.padded_length());
    return found;
  };
  CHECK(lengths(1) == Ids{3, 5, 2, 4, 1});
  CHECK(lengths(2) == Ids{5, 5, 4, 4, 1});
  CHECK(lengths(3) == Ids{5, 5, 5, 4, 4});
  CHECK(numbered_without_padding(batches, 2)[3].sequences.numbers() == Ids{std::int64_t{4} << 32});
  const Batch empty = collate({}, 0);
  const Sequences roomy = numbered_without_padding({&empty, 1})[0].sequences.with_capacity(4, 2);
  CHECK(roomy.numbers().size() == 3);
  CHECK(roomy.padded_length() == 1);
}

TEST_CASE("batch: with a capacity") {
  const TokenBatch batch(Tensor::from<std::int64_t>({5, 6, 7}, {3}),
                         Tensor::from<std::int64_t>({6, -100, 9}, {3}), Sequences::uniform(1, 3));
  const TokenBatch roomy = batch.with_capacity(5, 2, 4);
  CHECK(roomy.ids.to_vector() == std::vector<double>{5, 6, 7, 0, 0});
  CHECK(roomy.labels.to_vector() == std::vector<double>{6, -100, 9, -100, -100});
  CHECK(roomy.sequences.offsets() == std::vector<std::int64_t>{0, 3, 3, 5});
  CHECK(roomy.label_tokens == 2);
  CHECK(roomy.label_capacity == 4);
  CHECK(batch.label_capacity == 0);
  CHECK_THROWS_WITH_AS(batch.with_capacity(5, 2, 1), doctest::Contains("2 labels"), Error);
  CHECK_THROWS_AS(batch.with_capacity(2, 2, 4), Error);
}

TEST_CASE("batch: a label in the padding is noticed") {
  CHECK_THROWS_AS(collate(std::vector<Sample>{{"a", {1, 2}, {x, 3}, {1}}}, 0), std::logic_error);
}
