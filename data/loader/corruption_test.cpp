#include "data/loader/corruption.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

using namespace nemocube;

namespace {

constexpr std::int64_t x = ignored_label, row = std::int64_t{1} << 32, mask = 99, fill = 2;
using Ids = std::vector<std::int64_t>;

Ids values(const Tensor& t) {
  Ids out;
  for (const double v : t.to_vector()) out.push_back(static_cast<std::int64_t>(v));
  return out;
}

/// Tokens 10, 11, ... of which the first `prompt` are no targets.
Sample text(std::int64_t length, std::int64_t prompt, bool keep_last = true) {
  Sample sample;
  for (std::int64_t t = 0; t < length; ++t) sample.input_ids.push_back(10 + t);
  for (std::int64_t t = 1; t <= length; ++t)
    sample.labels.push_back(t < prompt || (keep_last && t == length) ? x : 10 + t);
  sample.lengths = {length};
  return sample;
}

TokenBatch numbered(const std::vector<Sample>& samples, Ids rows) {
  Batch batch = collate(samples, 0);
  batch.row_numbers = std::move(rows);
  return numbered_without_padding({&batch, 1}).front();
}

Corruption options(Paradigm paradigm = Paradigm::block_diff) {
  return {.paradigm = paradigm, .mask_token = mask, .fill_token = fill, .seed = 5};
}

/// Rows [begin, begin + count) of a tensor.
Ids part(const Tensor& t, std::int64_t begin, std::int64_t count) {
  return values(t.narrow(0, begin, count));
}

}  // namespace

TEST_CASE("corruption: a text is there twice, noised and clean, each with its labels") {
  const TokenBatch batch = numbered({text(12, 3), text(5, 1, false)}, {7, 1});
  const TokenBatch got = corrupted(batch, options());
  // The second text ends with a target that is no input, and gets it as one more token.
  CHECK(got.sequences.offsets() == Ids{0, 12, 24, 30, 36});
  CHECK(part(got.ids, 12, 12) == Ids{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21});
  CHECK(part(got.labels, 12, 12) == Ids{x, x, 13, 14, 15, 16, 17, 18, 19, 20, 21, x});
  CHECK(part(got.ids, 30, 6) == Ids{10, 11, 12, 13, 14, 15});
  CHECK(part(got.labels, 30, 6) == Ids{11, 12, 13, 14, 15, x});
  CHECK(got.label_tokens == 9 + 5);
  const auto weights = got.noised_weights.to_vector();
  std::int64_t noised = 0;
  for (const std::int64_t begin : {0, 24})
    for (std::int64_t t = 0; t < (begin == 0 ? 12 : 6); ++t) {
      const std::int64_t id = values(got.ids)[static_cast<std::size_t>(begin + t)],
                         label = values(got.labels)[static_cast<std::size_t>(begin + t)];
      CHECK(id == (label == x ? 10 + t : mask));
      CHECK((label == x || label == 10 + t));
      CHECK((weights[static_cast<std::size_t>(begin + t)] > 0) == (label != x));
      if (begin == 0 && t < 3) CHECK(label == x);  // of the prompt
      noised += label != x;
    }
  CHECK(noised > 0);
  CHECK(got.noised_tokens == noised);
  CHECK(got.sequences.positions()[12] == 0);
  // Halves have numbers of their own.
  CHECK(got.sequences.numbers() == Ids{7 * row, 7 * row + (row >> 1), row, row + (row >> 1)});
}

TEST_CASE("corruption: bidirectional is the noised half alone, with the same draws") {
  const TokenBatch batch = numbered({text(12, 3), text(9, 1)}, {7, 1});
  const TokenBatch both = corrupted(batch, options()),
                   alone = corrupted(batch, options(Paradigm::bidirectional));
  CHECK(alone.sequences.offsets() == Ids{0, 12, 21});
  CHECK(values(alone.ids.narrow(0, 0, 12)) == part(both.ids, 0, 12));
  CHECK(values(alone.ids.narrow(0, 12, 9)) == part(both.ids, 24, 9));
  CHECK(alone.noised_weights.to_vector()[3] == both.noised_weights.to_vector()[3]);
  CHECK(alone.noised_tokens == both.noised_tokens);
  CHECK(alone.label_tokens == both.label_tokens);
}

TEST_CASE("corruption: draws depend on the seed and the row alone") {
  const auto ids = [](const std::vector<Sample>& samples, Ids rows, std::uint64_t seed) {
    Corruption c = options(Paradigm::bidirectional);
    c.seed = seed;
    return values(corrupted(numbered(samples, std::move(rows)), c).ids);
  };
  const Sample long_text = text(200, 1), short_text = text(50, 1);
  const Ids first = ids({long_text}, {3}, 5), second = ids({short_text}, {4}, 5);
  Ids both = second;
  both.insert(both.end(), first.begin(), first.end());
  CHECK(ids({short_text, long_text}, {4, 3}, 5) == both);
  CHECK(ids({long_text}, {4}, 5) != first);
  CHECK(ids({long_text}, {3}, 6) != first);
}

TEST_CASE("corruption: by sequences, each target is noised with the probability that its weight tells") {
  double sum = 0, targets = 0;
  std::set<double> levels;
  for (std::int64_t number = 0; number < 400; ++number) {
    Corruption c = options(Paradigm::bidirectional);
    c.eps = 0.25;
    c.weight = 0.3;
    const TokenBatch got = corrupted(numbered({text(101, 1)}, {number}), c);
    double p = 0;
    for (const double weight : got.noised_weights.to_vector())
      if (weight > 0) p = 0.3 / weight;
    if (p == 0) continue;
    for (const double weight : got.noised_weights.to_vector())
      CHECK((weight == 0 || weight == doctest::Approx(0.3 / p)));
    CHECK(p >= 0.25);
    CHECK(p <= 1);
    levels.insert(p);
    targets += 100;
    // The estimate that the loss is made of: each target counts 1 in the mean.
    sum += static_cast<double>(got.noised_tokens) / p;
    CHECK(std::abs(static_cast<double>(got.noised_tokens) - 100 * p) < 5 * std::sqrt(100 * p * (1 - p)) + 1);
  }
  CHECK(levels.size() > 390);
  CHECK(std::abs(sum / targets - 1) < 0.02);
}

TEST_CASE("corruption: by blocks, each block has a probability and as many noised tokens as that tells") {
  Corruption c = options(Paradigm::bidirectional);
  c.block_size = 8;
  c.eps = 0.05;
  double early = 0, late = 0;
  for (std::int64_t number = 0; number < 300; ++number) {
    // The first token is no target, and blocks are counted from it; the last block is short.
    const TokenBatch got = corrupted(numbered({text(21, 1)}, {number}), c);
    const auto weights = got.noised_weights.to_vector();
    for (std::size_t begin = 8; begin < 21; begin += 8) {
      const std::size_t length = std::min<std::size_t>(8, 21 - begin);
      double p = 0, count = 0;
      for (std::size_t t = begin; t < begin + length; ++t)
        if (weights[t] > 0) p = 1 / weights[t], ++count;
      if (count > 0) CHECK(count == std::nearbyint(p * static_cast<double>(length)));
    }
    for (std::size_t t = 8; t < 12; ++t) early += weights[t] > 0;
    for (std::size_t t = 12; t < 16; ++t) late += weights[t] > 0;
  }
  CHECK(late > 1.1 * early);
}

TEST_CASE("corruption: texts are filled up with targets, up to the longest row") {
  Corruption c = options();
  c.fill_multiple = 8;
  const TokenBatch got = corrupted(numbered({text(12, 3)}, {7}), c);
  CHECK(got.sequences.offsets() == Ids{0, 16, 32});
  CHECK(part(got.ids, 16, 16) == Ids{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, fill, fill, fill, fill});
  CHECK(part(got.labels, 26, 6) == Ids{21, fill, fill, fill, fill, x});
  CHECK(got.label_tokens == 9 + 4);
  c.longest = 13;
  CHECK(corrupted(numbered({text(12, 3)}, {7}), c).sequences.length(0) == 13);
  c.longest = 5;
  CHECK(corrupted(numbered({text(12, 3)}, {7}), c).sequences.length(0) == 12);
}

TEST_CASE("corruption: documents of a packed row are texts; their rows have different numbers") {
  Sample packed;
  packed.input_ids = {5, 6, 7, 8, 9};
  packed.labels = {6, x, 8, 9, x};
  packed.lengths = {2, 3};
  Corruption c = options();
  c.fill_multiple = 4;
  const TokenBatch got = corrupted(numbered({packed}, {1}), c);
  CHECK(got.sequences.offsets() == Ids{0, 4, 8, 12, 16});
  CHECK(part(got.ids, 4, 4) == Ids{5, 6, fill, fill});
  CHECK(part(got.ids, 12, 4) == Ids{7, 8, 9, fill});
  const Ids numbers = values(got.sequences.row_numbers_on(Device::cpu));
  CHECK(std::set<std::int64_t>(numbers.begin(), numbers.end()).size() == 16);
}

TEST_CASE("corruption: a batch without rows, a capacity, and weights of labels") {
  Batch none = collate({}, 0);
  const TokenBatch empty = corrupted(numbered_without_padding({&none, 1}).front(), options());
  CHECK(empty.sequences.tokens() == 0);
  CHECK(empty.label_tokens == 0);
  const TokenBatch batch = corrupted(numbered({text(12, 3)}, {7}), options());
  const TokenBatch roomy = batch.with_capacity(30, 4, 30);
  CHECK(roomy.label_tokens == batch.label_tokens);
  CHECK(roomy.noised_tokens == batch.noised_tokens);
  CHECK(roomy.noised_weights.numel() == 30);
  CHECK(empty.with_capacity(30, 4, 30).sequences.numbers().size() == roomy.sequences.numbers().size());
  const auto weights = label_weights(batch, 3).to_vector(), own = batch.noised_weights.to_vector();
  for (std::size_t t = 0; t < weights.size(); ++t) CHECK(weights[t] == (own[t] > 0 ? 3 * own[t] : 1));
  CHECK_FALSE(label_weights(numbered({text(12, 3)}, {7}), 3));
  CHECK_THROWS_AS(corrupted(without_padding(collate(std::vector{text(12, 3)}, 0)), options()),
                  std::logic_error);
}
