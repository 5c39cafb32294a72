#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/json/json.h"
#include "data/loader/batch.h"

/// Batches of a data set, epoch after epoch.
///
/// All ranks use the same order of the rows: 0, 1, 2, ... or, shuffled, permutation(rows, seed + epoch). Of
/// every dp_size * batch_size consecutive rows in this order, rank r takes those at r, r + dp_size, r + 2
/// dp_size, ... The rows of a step therefore do not depend on dp_size as long as the global batch is the
/// same. All ranks get as many batches in an epoch. The last one may be short, and have fewer rows, or none, on
/// the last ranks; with drop_last it is left out.
namespace nemocube {

struct LoaderOptions {
  std::int64_t batch_size = 1;  ///< rows in a batch of one rank
  bool shuffle = false;
  bool drop_last = false;
  std::int64_t seed = 42;
  std::int64_t dp_rank = 0;
  std::int64_t dp_size = 1;
};

/// The position of a loader between two batches. The state is the same on all ranks, and valid for another
/// dp_size.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t next_index = 0;  ///< rows of the epoch's order that all ranks together have taken
  std::int64_t rows = 0;        ///< of the data set; restore() refuses a state with another number
  std::int64_t seed = -1;       ///< of the shuffle; -1 when there is none

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};
Json to_json(const LoaderState& state);
/// Throws Error naming the file and the field that is missing, negative or not an integer.
LoaderState loader_state_from_json(const JsonView& json);

class Loader {
 public:
  /// Throws Error when an epoch would have no batch.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);

  const Dataset& dataset() const { return *dataset_; }
  std::int64_t batches_per_epoch() const;
  bool epoch_done() const;  ///< no batch is left in this epoch

  /// The next batch of this rank. pre: !epoch_done()
  Batch next();
  /// The microbatches of one step: `count` batches, fewer at the end of an epoch.
  std::vector<Batch> next_group(std::int64_t count);

  std::int64_t epoch() const { return epoch_; }
  void start_epoch(std::int64_t epoch);

  LoaderState state() const;
  /// Continues from this state. Throws Error when rows or seed differ.
  void restore(const LoaderState& state);

 private:
  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::int64_t epoch_ = 0;
  std::int64_t next_ = 0;
  std::vector<std::int64_t> order_;  // empty: not shuffled
};

}  // namespace nemocube
