#pragma once
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/json/json.h"
#include "data/loader/batch.h"

/// Batches of a data set, epoch after epoch.
///
/// All ranks use the same order of the rows: 0, 1, 2, ... or, shuffled, permutation(rows, seed + epoch). Of
/// every dp_size * batch_size consecutive rows in this order, rank r takes rows r, r + dp_size, r + 2
/// dp_size, ... The rows of a step therefore do not depend on dp_size as long as the global batch is the
/// same. All ranks get equally many batches in an epoch. The last batch may be short, with fewer rows, or
/// none, on the last ranks; with drop_last this batch is left out.
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
  std::int64_t seed = -1;       ///< of the shuffle; -1 without one

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
  /// The microbatches of one step: `count` batches, fewer at the end of an epoch. Where the data
  /// set makes its rows on demand, a thread then makes the rows of the next step of the same
  /// epoch, and rows of two steps are in memory.
  std::vector<Batch> next_group(std::int64_t count);

  std::int64_t epoch() const { return epoch_; }
  void start_epoch(std::int64_t epoch);

  LoaderState state() const;
  /// Continues from this state. Throws Error when rows or seed differ.
  void restore(const LoaderState& state);

 private:
  using Places = std::vector<std::int64_t>;  ///< in the order of the epoch, of this rank's rows of a batch
  using Rows = std::vector<std::int64_t>;    ///< of the data set
  /// Batches whose rows are being made.
  struct Ahead {
    std::vector<Places> batches;
    std::int64_t epoch;
    std::future<std::vector<std::vector<Sample>>> samples;
  };
  bool has_batch_at(std::int64_t begin) const;
  std::int64_t end_of_batch(std::int64_t begin) const;
  Places places_from(std::int64_t begin) const;
  std::vector<Places> group_from(std::int64_t begin, std::int64_t count) const;
  std::vector<Rows> rows_of(const std::vector<Places>& batches) const;
  void make_ahead(std::int64_t count);

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::int64_t epoch_ = 0;
  std::int64_t next_ = 0;
  std::vector<std::int64_t> order_;  // empty: not shuffled
  std::optional<Ahead> ahead_;
};

}  // namespace nemocube
