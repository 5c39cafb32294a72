#include "train/assemble/run_batches.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "data/datasets/permutation.h"

namespace nemocube {
namespace {

constexpr std::int64_t most_rows = std::int64_t{1} << 21;  // that are looked at in the order of a run

// Of a packed row, whose documents only the row itself tells; of as many rows as tell the rest of the data
// set.
std::int64_t most_documents_of_row(const Dataset& dataset) {
  constexpr std::int64_t rows = 256;
  std::size_t most = 1;
  for (std::int64_t i = 0; i < std::min(rows, dataset.size()); ++i)
    most = std::max(most, dataset.sample(i).lengths.size());
  return static_cast<std::int64_t>(most);
}

}  // namespace

bool draws_for_rows(const Recipe& recipe) {
  return recipe.neftune.alpha > 0 || (recipe.peft && recipe.peft->dropout > 0);
}

std::vector<TokenBatch> batches_of_step(const Recipe& recipe, const std::optional<Corruption>& corruption,
                                        std::span<const Batch> batches) {
  std::vector<TokenBatch> result;
  if (corruption || draws_for_rows(recipe)) {
    const auto& pipeline = recipe.distributed.pipeline;
    const std::int64_t rows = recipe.step_scheduler.local_batch_size;
    result = numbered_without_padding(batches, pipeline ? rows / pipeline->pp_microbatch_size : 1);
    if (corruption)
      for (TokenBatch& batch : result) batch = corrupted(batch, *corruption);
    return result;
  }
  for (const Batch& batch : batches) result.push_back(without_padding(batch));
  return result;
}

RunBatches batches_of_run(const Dataset& dataset, const LoaderOptions& options, std::int64_t epochs) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < dataset.size(); ++i) lengths.push_back(dataset.content_length(i));
  const std::int64_t rows = std::ssize(lengths), of_rank = std::min(rows, options.batch_size),
                     of_all = options.batch_size * options.dp_size;
  RunBatches found;
  found.longest_row = rows > 0 ? std::ranges::max(lengths) : 0;
  found.sequences = of_rank * most_documents_of_row(dataset);
  if (!options.shuffle) epochs = std::min<std::int64_t>(epochs, 1);
  std::int64_t least = -1;
  const auto count = [&](std::int64_t tokens) {
    found.tokens = std::max(found.tokens, tokens);
    least = least < 0 ? tokens : std::min(least, tokens);
  };
  if (epochs > most_rows / std::max<std::int64_t>(rows, 1)) {
    std::ranges::sort(lengths, std::greater());
    count(std::accumulate(lengths.begin(), lengths.begin() + of_rank, std::int64_t{0}));
    count(std::accumulate(lengths.end() - of_rank, lengths.end(), std::int64_t{0}));
  } else {
    std::vector<std::int64_t> order(lengths.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      if (options.shuffle)
        order =
            permutation(rows, static_cast<std::uint64_t>(options.seed) + static_cast<std::uint64_t>(epoch));
      for (std::int64_t begin = 0; begin < rows; begin += of_all) {
        const std::int64_t end = std::min(begin + of_all, rows);
        if (options.drop_last && end - begin < of_all) break;
        std::vector<std::int64_t> tokens(static_cast<std::size_t>(options.dp_size));
        for (std::int64_t at = begin; at < end; ++at)
          tokens[static_cast<std::size_t>((at - begin) % options.dp_size)] +=
              lengths[static_cast<std::size_t>(order[static_cast<std::size_t>(at)])];
        for (const std::int64_t sum : tokens) count(sum);
      }
    }
  }
  found.vary = least != found.tokens;
  return found;
}

RunBatches corrupted(const RunBatches& batches, const std::optional<Corruption>& corruption) {
  if (!corruption) return batches;
  const std::int64_t halves = corruption->paradigm == Paradigm::block_diff ? 2 : 1,
                     more = corruption->fill_multiple;  // tokens of a text behind the inputs, at most
  RunBatches result = batches;
  result.tokens = halves * (batches.tokens + batches.sequences * more);
  // Halves come in pairs: with the room that capacity_of_run() adds to a multiple of 8, there are as many of
  // both.
  result.sequences = (halves * batches.sequences + 7) / 8 * 8;
  result.longest_row = batches.longest_row + more;
  return result;
}

BatchCapacity capacity_of_run(const RunBatches& batches) {
  // The number of sequences is that of some packed rows; others may have a few more.
  return {batches.tokens, batches.sequences + batches.sequences / 4};
}

TokenBatch BatchCapacity::fit(TokenBatch batch) const {
  if (batch.sequences.tokens() > rows || batch.sequences.count() > sequences) return batch;
  return batch.with_capacity(rows, sequences, rows);
}

}  // namespace nemocube
