#include "data/datasets/row.h"

#include <doctest/doctest.h>

using namespace nemocube;

namespace {

constexpr std::int64_t x = ignored_label;
using Ids = std::vector<std::int64_t>;

TokenRow row_of(const std::vector<int>& prompt, const std::vector<int>& answer) {
  TokenRow row;
  row.id = "q";
  for (const int id : prompt) row.append(id, false);
  for (const int id : answer) row.append(id, true);
  return row;
}

/// The row of the tables: prompt 11 12 13 14, answer 21 22, EOS 2.
TokenRow table_row() { return row_of({11, 12, 13, 14}, {21, 22, 2}); }

/// `prompt` prompt ids, `answer` target ids.
TokenRow sized_row(int prompt, int answer) {
  TokenRow row;
  for (int i = 0; i < prompt + answer; ++i) row.append(100 + i, i >= prompt);
  return row;
}

Sample fixed(TokenRow row, std::int64_t length, Truncation how) {
  truncate_row(row, how, length);
  const Sample sample = finish_row(
      row, {.seq_length = length, .padding = Padding::max_length, .truncation = how}, /*pad_id=*/0);
  check_sample(sample);
  return sample;
}

}  // namespace

TEST_CASE("rows: against the table of the upstream formatter") {
  struct Case {
    std::int64_t length;
    Truncation how;
    Ids input_ids, labels;
    std::int64_t content;
  };
  const Case cases[] = {
      {10, Truncation::none, {11, 12, 13, 14, 21, 22, 2, 0, 0, 0}, {x, x, x, 21, 22, 2, x, x, x, x}, 6},
      {10, Truncation::left, {11, 12, 13, 14, 21, 22, 2, 0, 0, 0}, {x, x, x, 21, 22, 2, x, x, x, x}, 6},
      {7, Truncation::left, {11, 12, 13, 14, 21, 22, 0}, {x, x, x, 21, 22, 2, x}, 6},
      {5, Truncation::right, {11, 12, 13, 14, 0}, {x, x, x, 21, x}, 4},
      {4, Truncation::right, {11, 12, 13, 0}, {x, x, x, x}, 3},
      {5, Truncation::left, {13, 14, 21, 22, 0}, {x, 21, 22, 2, x}, 4},
      {4, Truncation::left, {14, 21, 22, 0}, {21, 22, 2, x}, 3},
      {3, Truncation::left, {21, 22, 0}, {22, 2, x}, 2},
  };
  for (const Case& c : cases) {
    CAPTURE(c.length);
    const Sample sample = fixed(table_row(), c.length, c.how);
    CHECK(sample.input_ids == c.input_ids);
    CHECK(sample.labels == c.labels);
    CHECK(sample.content_length() == c.content);
  }
  const Sample plain = finish_row(table_row(), {}, 0);
  CHECK(plain.input_ids == Ids{11, 12, 13, 14, 21, 22});
  CHECK(plain.labels == Ids{x, x, x, 21, 22, 2});
  CHECK(plain.lengths == Ids{6});
  CHECK(plain.label_tokens() == 3);
}

TEST_CASE("rows: label counts of truncated rows against their formulas") {
  for (int p : {1, 2, 3, 7, 8, 9, 20})
    for (int a : {1, 2, 5, 8, 9, 12})
      for (std::int64_t s : {2, 3, 8, 9, 10, 40}) {
        CAPTURE(p);
        CAPTURE(a);
        CAPTURE(s);
        const std::int64_t left = fixed(sized_row(p, a), s, Truncation::left).label_tokens();
        const std::int64_t right = fixed(sized_row(p, a), s, Truncation::right).label_tokens();
        if (p + a <= s) {
          CHECK(left == a);
          CHECK(right == a);
        } else {
          CHECK(left == (a < s ? a : s - 1));
          CHECK(right == (p < s ? s - p : 0));
        }
      }
}

TEST_CASE("rows: truncation keeps what leads and takes the context first") {
  TokenRow row = row_of({1, 10, 31, 32, 33, 40, 41}, {21, 2});  // BOS, "Context:", context, question
  row.leading = 1;
  row.context_begin = 2;
  row.context_end = 5;
  const auto cut = [&](Truncation how, std::int64_t length) {
    TokenRow copy = row;
    truncate_row(copy, how, length);
    CHECK(copy.supervised.size() == copy.ids.size());
    return copy.ids;
  };
  using Kept = std::vector<std::int32_t>;
  CHECK(cut(Truncation::none, 3) == row.ids);
  CHECK(cut(Truncation::context, 9) == row.ids);
  CHECK(cut(Truncation::context, 8) == Kept{1, 10, 32, 33, 40, 41, 21, 2});
  CHECK(cut(Truncation::context, 6) == Kept{1, 10, 40, 41, 21, 2});
  CHECK(cut(Truncation::context, 4) == Kept{1, 41, 21, 2});  // then the rest is cut from its left
  CHECK(cut(Truncation::left, 4) == Kept{1, 41, 21, 2});
  CHECK(cut(Truncation::right, 4) == Kept{1, 10, 31, 32});
}

TEST_CASE("rows: without truncation a row that is too long is an error") {
  const RowOptions options{.seq_length = 6, .padding = Padding::max_length};
  CHECK(finish_row(table_row(), options, 0).input_ids == Ids{11, 12, 13, 14, 21, 22});
  const RowOptions shorter{.seq_length = 5, .padding = Padding::max_length};
  CHECK_THROWS_WITH_AS(finish_row(table_row(), shorter, 0),
                       "row 'q' has 6 positions, seq_length is 5; set truncation: true", Error);
}

TEST_CASE("rows: empty and one id") {
  CHECK(finish_row({}, {}, 0).positions() == 0);
  CHECK(finish_row(row_of({}, {2}), {}, 0).positions() == 0);
  const Sample padded = fixed(row_of({}, {2}), 3, Truncation::left);
  CHECK(padded.input_ids == Ids{2, 0, 0});
  CHECK(padded.labels == Ids{x, x, x});
  CHECK(padded.lengths.empty());
}

TEST_CASE("row data set: drops rows without labels, refuses to be empty") {
  const RowOptions options{.seq_length = 5, .padding = Padding::max_length, .truncation = Truncation::right};
  const RowDataset data("data", {sized_row(6, 2), table_row(), sized_row(5, 1)}, options, 9);
  CHECK(data.size() == 1);
  CHECK(data.dropped() == 2);
  CHECK(data.content_length(0) == 4);
  CHECK(data.sample(0).input_ids == Ids{11, 12, 13, 14, 9});
  CHECK_THROWS_AS(data.sample(1), std::logic_error);
  TokenRow unlabelled;
  unlabelled.append(1, false);
  CHECK_THROWS_WITH_AS(
      RowDataset("data", {sized_row(6, 2)}, options, 0),
      "data: none of 1 row has a label (seq_length 5, truncation from the right cuts the answers away)",
      Error);
  CHECK_THROWS_WITH_AS(RowDataset("data", {unlabelled}, {}, 0), "data: none of 1 row has a label", Error);
  CHECK_THROWS_WITH_AS(RowDataset("data", {table_row()}, {.truncation = Truncation::left}, 0),
                       "data: padding to max_length and truncation want a seq_length of 2 or more, got none",
                       Error);
}

TEST_CASE("rows: broken samples are noticed") {
  Sample sample = finish_row(table_row(), {}, 0);
  sample.lengths = {5};
  CHECK_THROWS_AS(check_sample(sample), std::logic_error);  // a label in what is now padding
  sample.lengths = {7};
  CHECK_THROWS_AS(check_sample(sample), std::logic_error);
  sample.lengths = {6, 0};
  CHECK_THROWS_AS(check_sample(sample), std::logic_error);
}
