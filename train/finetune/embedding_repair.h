#pragma once
#include <cstdint>

#include "model/stack.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

struct EmbeddingRepair {
  double min_norm = 1e-6;       ///< rows of at most this norm are damaged, and rows that are not finite
  std::int64_t max_rows = 256;  ///< of damaged rows
};

/// Replaces damaged rows of the input embeddings, such as rows of tokens that were never trained:
///
///     row i of embeddings = row i of lm_head * sqrt(mean of |healthy row|^2) / |row i of lm_head|
///
/// Norms are of the elements in f32, summed in f64. Returns how many rows were replaced.
/// Several ranks call together, between loading and DataParallel::spread_values(); each
/// replaces its own rows. `ranks` null: one rank.
///
/// errors  on all ranks alike: Error for more damaged rows than max_rows, for embeddings without a healthy
///         row, and where the row of lm_head for a
///         damaged row is damaged too
/// source  NeMo AutoModel, recipe key embedding_row_repair
std::int64_t repair_embeddings(Stack& model, const EmbeddingRepair& options, Communicator* ranks);

}  // namespace nemocube
