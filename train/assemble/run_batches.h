#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/loader/corruption.h"
#include "data/loader/loader.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// Whether steps draw random numbers for rows: dropout of adapters, or noise on the embeddings.
bool draws_for_rows(const Recipe& recipe);
/// The batches that a Loader gives for a step, without padding, numbered where draws_for_rows() says so, and
/// corrupted where there is a corruption (recipe_corruption()).
std::vector<TokenBatch> batches_of_step(const Recipe& recipe, const std::optional<Corruption>& corruption,
                                        std::span<const Batch> batches);

/// Sizes of a run's microbatches, of the rank that gets most.
struct RunBatches {
  std::int64_t tokens = 0;       ///< of the largest microbatch, padding left out
  std::int64_t sequences = 0;    ///< of a microbatch, at most
  std::int64_t longest_row = 0;  ///< tokens
  bool vary = false;             ///< microbatches have different numbers of tokens
};

/// The same sizes for all microbatches of a run, as steps by CUDA graphs need them
/// (train/step/step_replay.h).
struct BatchCapacity {
  std::int64_t rows = 0, sequences = 0;
  /// TokenBatch::with_capacity(), with room for a label in every row; a larger batch stays as it is.
  TokenBatch fit(TokenBatch batch) const;
};

/// The microbatches that a Loader with these options gives in `epochs` epochs. With too many rows for a quick
/// look, the longest rows of the data set count as one microbatch.
RunBatches batches_of_run(const Dataset& dataset, const LoaderOptions& options, std::int64_t epochs);
/// The sizes of the same microbatches when they are corrupted, at most.
RunBatches corrupted(const RunBatches& batches, const std::optional<Corruption>& corruption);
/// The capacity for the largest of these microbatches, the same on all ranks.
BatchCapacity capacity_of_run(const RunBatches& batches);

}  // namespace nemocube
