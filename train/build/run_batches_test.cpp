#include "train/build/run_batches.h"

#include <doctest/doctest.h>

using namespace nemocube;

namespace {

TokenBatch batch_of(const std::vector<std::int64_t>& lengths) {
  const Sequences sequences = Sequences::of_lengths(lengths);
  const Tensor ids = Tensor::zeros({sequences.tokens()}, DType::i64, Device::cpu);  // of a loader
  return {ids, ids, sequences};
}

}  // namespace

TEST_CASE(
    "batch capacity: microbatches up to the largest of a run get one size, a larger one keeps its own") {
  const BatchCapacity capacity =
      capacity_of_run({.tokens = 12, .sequences = 8, .longest_row = 7, .vary = true});
  CHECK(capacity.rows == 12);
  CHECK(capacity.sequences == 10);
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{}, {5, 7}, {1, 2, 3}}) {
    const TokenBatch tight = batch_of(lengths), fitted = capacity.fit(tight);
    CHECK(fitted.ids.numel() == 12);
    CHECK(fitted.sequences.tokens() == 12);
    CHECK(fitted.sequences.count() == 11);  // and that of the spare rows
    CHECK(fitted.sequences.token_count() == tight.sequences.tokens());
    CHECK(fitted.label_tokens == tight.label_tokens);
    CHECK(fitted.label_capacity == 12);
  }
  CHECK_FALSE(capacity.fit(batch_of({6, 7})).sequences.has_spare_rows());
  CHECK_FALSE(capacity.fit(batch_of(std::vector<std::int64_t>(11, 1))).sequences.has_spare_rows());
}
