#include "data/loader/corruption.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "core/rng.h"

namespace nemocube {
namespace {

struct Text {
  std::vector<std::int64_t> tokens;
  std::vector<bool> targets;
  std::vector<double> probabilities;  ///< of noise
  std::vector<bool> noised;
  std::size_t size() const { return tokens.size(); }
};

/// Sequence i of the batch.
Text text_of(const TokenBatch& batch, std::int64_t i, const Corruption& c) {
  const std::int64_t begin = batch.sequences.begin(i), end = batch.sequences.end(i);
  const auto *ids = batch.ids.data<std::int64_t>(), *labels = batch.labels.data<std::int64_t>();
  Text text;
  for (std::int64_t t = begin; t < end; ++t) {
    text.tokens.push_back(ids[t]);
    text.targets.push_back(t > begin && labels[t - 1] != ignored_label);
  }
  const auto add_target = [&](std::int64_t token) {
    text.tokens.push_back(token);
    text.targets.push_back(true);
  };
  if (begin == end) return text;
  if (labels[end - 1] != ignored_label) add_target(labels[end - 1]);
  while (std::ssize(text.tokens) % c.fill_multiple != 0 &&
         (!c.longest || std::ssize(text.tokens) < *c.longest))
    add_target(c.fill_token);
  return text;
}

/// The draws of one sequence.
struct Draws {
  Draws(std::uint64_t seed, std::int64_t number)
      : levels(seed, cat("corruption.level.", number)), tokens(seed, cat("corruption.token.", number)) {}
  RandomStream levels;  ///< of p
  RandomStream tokens;
};

double level(const Draws& draws, std::size_t of, double eps) {
  return eps + (1 - eps) * draws.levels.uniform(of);
}

void noise_by_sequence(Text& text, const Draws& draws, const Corruption& c) {
  const double p = level(draws, 0, c.eps);
  for (std::size_t t = 0; t < text.size(); ++t) {
    text.probabilities[t] = p;
    text.noised[t] = draws.tokens.uniform(t) < p;
  }
}

/// The largest sums of log weights and draws of Gumbel's distribution are a choice without replacement.
void noise_by_blocks(Text& text, const Draws& draws, const Corruption& c) {
  const auto size = static_cast<std::size_t>(*c.block_size);
  const double rate = std::log(2.0) / (c.half_life_ratio * static_cast<double>(size));
  for (std::size_t begin = 0, block = 0; begin < text.size(); begin += size, ++block) {
    const std::size_t length = std::min(size, text.size() - begin);
    const double p = level(draws, block, c.eps);
    std::vector<std::pair<double, std::size_t>> ranked;
    for (std::size_t i = 0; i < length; ++i) {
      const double gumbel = -std::log(-std::log(draws.tokens.uniform(begin + i)));
      ranked.emplace_back(rate * (1 - p) * static_cast<double>(i) + gumbel, begin + i);
      text.probabilities[begin + i] = p;
    }
    std::ranges::sort(ranked, std::greater());
    const auto chosen = static_cast<std::size_t>(std::nearbyint(p * static_cast<double>(length)));
    for (std::size_t i = 0; i < std::min(chosen, length); ++i) text.noised[ranked[i].second] = true;
  }
}

void add_noise(Text& text, std::int64_t number, const Corruption& c) {
  text.probabilities.resize(text.size());
  text.noised.resize(text.size());
  const Draws draws(c.seed, number);
  if (c.block_size)
    noise_by_blocks(text, draws, c);
  else
    noise_by_sequence(text, draws, c);
  for (std::size_t t = 0; t < text.size(); ++t) text.noised[t] = text.noised[t] && text.targets[t];
}

/// The rows of the corrupted batch.
class Rows {
 public:
  explicit Rows(const Corruption& c) : c_(c) {}

  /// `number`: of its first row.
  void add(const Text& text, std::int64_t number) {
    for (std::size_t t = 0; t < text.size(); ++t) {
      const bool noised = text.noised[t];
      add_row(noised ? c_.mask_token : text.tokens[t], noised ? text.tokens[t] : ignored_label,
              noised ? c_.weight / std::max(text.probabilities[t], 1e-8) : 0);
    }
    end_sequence(text, number);
    label_tokens_ += std::ranges::count(text.targets, true);
    noised_tokens_ += std::ranges::count(text.noised, true);
    if (c_.paradigm == Paradigm::bidirectional) return;
    for (std::size_t t = 0; t < text.size(); ++t) {
      const bool has_label = t + 1 < text.size() && text.targets[t + 1];
      add_row(text.tokens[t], has_label ? text.tokens[t + 1] : ignored_label, 0);
    }
    // A row of the data has 2^32 numbers, and less than half as many tokens.
    end_sequence(text, number + (std::int64_t{1} << 31));
  }

  TokenBatch batch(std::int64_t padded_length) {
    const Shape shape{std::ssize(ids_)};
    TokenBatch made(Tensor::from(ids_, shape), Tensor::from(labels_, shape),
                    Sequences::of_lengths(lengths_).numbered(std::move(numbers_), padded_length));
    made.label_tokens = label_tokens_;
    made.noised_weights = Tensor::from(weights_, shape);
    made.noised_tokens = noised_tokens_;
    return made;
  }

 private:
  void add_row(std::int64_t id, std::int64_t label, double weight) {
    ids_.push_back(id);
    labels_.push_back(label);
    weights_.push_back(weight);
  }
  void end_sequence(const Text& text, std::int64_t number) {
    lengths_.push_back(std::ssize(text.tokens));
    numbers_.push_back(number);
  }

  const Corruption& c_;
  std::vector<std::int64_t> ids_, labels_, lengths_, numbers_;
  std::vector<double> weights_;
  std::int64_t label_tokens_ = 0, noised_tokens_ = 0;
};

}  // namespace

TokenBatch corrupted(const TokenBatch& batch, const Corruption& c) {
  const Sequences& sequences = batch.sequences;
  expect(c.paradigm != Paradigm::autoregressive && c.weight > 0 && c.fill_multiple >= 1 &&
             (!c.block_size || (*c.block_size >= 1 && c.half_life_ratio > 0)),
         "corruption: options out of range");
  expect(std::ssize(sequences.numbers()) == sequences.count(), "corruption: want numbered sequences");
  Rows rows(c);
  std::int64_t end = 0;  // of the numbers so far
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    const std::int64_t number = sequences.numbers()[static_cast<std::size_t>(i)];
    Text text = text_of(batch, i, c);
    add_noise(text, number, c);
    // Texts are longer than the sequences of a packed row, whose numbers follow each other.
    const bool same_row = number >> 32 == end >> 32;
    const std::int64_t first = same_row ? std::max(number, end) : number;
    end = first + std::ssize(text.tokens);
    rows.add(text, first);
  }
  return rows.batch(sequences.padded_length());
}

}  // namespace nemocube
