#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "data/datasets/dataset.h"
#include "model/stack.h"
#include "train/evaluate/log_probabilities.h"

/// Rows whose labels have log-probabilities, and what these are.
namespace nemocube::testing {

/// Seven rows of one to three documents in a vocabulary of 16 tokens. Row 2 has no label, the others lack
/// some.
struct ScoredRowsData : Dataset {
  std::int64_t size() const override { return 7; }
  Sample sample(std::int64_t i) const override {
    Sample s;
    s.id = cat("row ", i);
    for (std::int64_t document = 0; document <= i % 3; ++document) {
      s.lengths.push_back(2 + (5 * i + 3 * document) % 7);
      for (std::int64_t t = 0; t < s.lengths.back(); ++t) {
        const auto at = static_cast<std::int64_t>(s.input_ids.size());
        s.input_ids.push_back((7 * at + 5 * i + 1) % 16);
        const bool labelled = i != 2 && (at + i) % 4 != 0 && t + 1 < s.lengths.back();
        s.labels.push_back(labelled ? (7 * (at + 1) + 5 * i + 1) % 16 : ignored_label);
      }
    }
    return s;
  }
};

/// From logits of one document at a time, in f64.
inline std::vector<LabelLogProbability> by_whole_logits(Stack& model, const Dataset& data) {
  std::vector<LabelLogProbability> all;
  for (std::int64_t row = 0; row < data.size(); ++row) {
    const Sample sample = data.sample(row);
    std::int64_t first = 0;
    for (const std::int64_t length : sample.lengths) {
      const std::vector<std::int64_t> ids(sample.input_ids.begin() + first,
                                          sample.input_ids.begin() + first + length);
      Context ctx;
      const Var hidden = model.hidden(ctx, Tensor::from(ids, {length}), Sequences::uniform(1, length));
      const Tensor logits = model.logits(hidden.value()).to(DType::f64);
      for (std::int64_t t = 0; t < length; ++t) {
        const std::int64_t label = sample.labels[static_cast<std::size_t>(first + t)];
        if (label == ignored_label) continue;
        double sum = 0;
        for (std::int64_t v = 0; v < logits.cols(); ++v) sum += std::exp(logits.row<double>(t)[v]);
        all.push_back({row, first + t, label, logits.row<double>(t)[label] - std::log(sum)});
      }
      first += length;
    }
  }
  return all;
}

inline void check_scores(const std::vector<LabelLogProbability>& got,
                         const std::vector<LabelLogProbability>& want, double bound) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].row == want[i].row);
    CHECK(got[i].position == want[i].position);
    CHECK(got[i].label == want[i].label);
    CHECK(std::abs(got[i].value - want[i].value) <= bound);
  }
}

}  // namespace nemocube::testing
