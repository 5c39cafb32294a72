#include "train/assemble/run_batches.h"

#include <doctest/doctest.h>

using namespace nemocube;

namespace {

TokenBatch batch_of(const std::vector<std::int64_t>& lengths) {
  const Sequences sequences = Sequences::of_lengths(lengths);
  const Tensor ids = Tensor::zeros({sequences.tokens()}, DType::i64, Device::cpu);  // of a loader
  return {ids, ids, sequences};
}

Recipe recipe_of(const std::string& more) {
  return parse_recipe(cat("dataset: {_target_: mock}\n", more), "r.yaml", {}, RecipeUse::data);
}

}  // namespace

TEST_CASE("batches of a step: numbered where something is drawn for rows, padded as a forward pass") {
  std::vector<Batch> batches;
  for (const std::int64_t width : {3, 5, 2, 4}) {
    Sample sample;
    sample.input_ids.assign(static_cast<std::size_t>(width), 7);
    sample.labels = sample.input_ids;
    sample.lengths = {width};
    batches.push_back(collate({&sample, 1}, 0));
    batches.back().row_numbers = {width};
  }
  const auto padded = [&](const std::string& more) {
    std::vector<std::int64_t> lengths;
    for (const TokenBatch& batch : batches_of_step(recipe_of(more), {}, batches)) {
      CHECK(batch.sequences.numbers().empty() == (batch.sequences.padded_length() == 0));
      lengths.push_back(batch.sequences.padded_length());
    }
    return lengths;
  };
  using Lengths = std::vector<std::int64_t>;
  CHECK(padded("") == Lengths{0, 0, 0, 0});
  CHECK(padded("neftune: 0") == Lengths{0, 0, 0, 0});
  CHECK(padded("peft: {dim: 4}") == Lengths{0, 0, 0, 0});
  CHECK(padded("peft: {dropout: 0.1}") == Lengths{3, 5, 2, 4});
  CHECK(padded("neftune: 5") == Lengths{3, 5, 2, 4});
  CHECK(padded("neftune: 5\nstep_scheduler: {local_batch_size: 2}") == Lengths{3, 5, 2, 4});
  CHECK(padded("neftune: 5\nstep_scheduler: {global_batch_size: 4, local_batch_size: 2}\n"
               "distributed: {pp_size: 2, pipeline: {pp_microbatch_size: 1}}") == Lengths{5, 5, 4, 4});
}

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
