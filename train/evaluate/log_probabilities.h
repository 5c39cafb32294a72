#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/json/atomic_file.h"
#include "data/loader/batch.h"
#include "parallel/parallel_model/parallel_model.h"

/// Log-probabilities of given tokens.
namespace nemocube {

/// log p(label | the tokens of its document up to `position`), natural logarithm: the label's logit minus the
/// logarithm of the sum of the exponentials of all logits, as the loss has them (LogitOptions), without a z
/// loss. Source: torch.log_softmax at the label.
struct LabelLogProbability {
  std::int64_t row = 0;       ///< of the data set
  std::int64_t position = 0;  ///< in the row; the label is the token that follows there
  std::int64_t label = 0;
  double value = 0;
};

/// The place of each token of without_padding(batch).
struct TokenPlaces {
  std::vector<std::int64_t> rows, positions;
};
TokenPlaces token_places(const Batch& batch);

/// The log-probabilities that this rank has found, for one rank of those that compute the same ones
/// (ParallelModel::counts_loss()); empty on the others. `token_losses` are those of Stack::loss() for the own
/// labels of `batch`; undefined on ranks without the head. The host waits for them.
std::vector<LabelLogProbability> own_log_probabilities(const ParallelModel& model, const TokenBatch& batch,
                                                       const TokenPlaces& places, const Tensor& token_losses);
/// Those of all ranks, on every rank, by row and position. All ranks of the grid call together.
std::vector<LabelLogProbability> all_log_probabilities(const ParallelModel& model,
                                                       std::span<const LabelLogProbability> own);

/// Rows [begin, end) of a data set, with the log-probabilities of their labels by row and position.
struct ScoredRows {
  std::int64_t begin = 0, end = 0;
  std::vector<LabelLogProbability> labels;
};
/// Called on every rank with the same rows, which follow each other from row 0 on.
using OnScoredRows = std::function<void(const ScoredRows&)>;

/// A line of JSON for each row:
///     {"row":0,"positions":[3,4],"tokens":[17,2],"logprobs":[-0.5,-1.25]}
/// Lists have an entry for each label. Numbers have the fewest digits that give the f32 back; null where one
/// is not finite.
std::string log_probability_lines(const ScoredRows& rows);

/// The file of `eval --logprobs`: the lines of a data set, in its order. Rank 0 of `group` writes; all ranks
/// call together and get rank 0's errors. The file appears whole, with finish(), or not at all.
class LogProbabilityFile {
 public:
  LogProbabilityFile(std::filesystem::path path, Communicator& group);
  void write(const ScoredRows& rows);
  void finish();

 private:
  Communicator& group_;
  std::optional<AtomicFile> file_;  // of rank 0
};

}  // namespace nemocube
