#include "data/loader/loader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/datasets/permutation.h"

namespace nemocube {

Json to_json(const LoaderState& state) {
  return {
      {"epoch", state.epoch}, {"next_index", state.next_index}, {"rows", state.rows}, {"seed", state.seed}};
}

LoaderState loader_state_from_json(const JsonView& json) {
  const auto field = [&](const char* name) {
    const JsonView value = json.at(name);
    if (value.integer() < 0) value.refuse("an integer from 0");
    return value.integer();
  };
  return {field("epoch"), field("next_index"), field("rows"), json.at("seed").integer()};
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  require(options_.batch_size >= 1, "data loader: batch size must be 1 or more, is ", options_.batch_size);
  expect(0 <= options_.dp_rank && options_.dp_rank < options_.dp_size, "data loader: rank ", options_.dp_rank,
         " of ", options_.dp_size);
  require(batches_per_epoch() >= 1, "data loader: ", dataset_->size(), " rows give no batch of ",
          options_.batch_size, " on each of ", options_.dp_size, " data-parallel ranks; want ",
          options_.drop_last ? options_.dp_size * options_.batch_size : 1, " rows or more");
  start_epoch(0);
}

std::int64_t Loader::batches_per_epoch() const {
  const std::int64_t rows = dataset_->size(), of_all_ranks = options_.batch_size * options_.dp_size;
  return rows / of_all_ranks + (!options_.drop_last && rows % of_all_ranks != 0);
}

bool Loader::epoch_done() const {
  const std::int64_t left = dataset_->size() - next_;
  return options_.drop_last ? left < options_.batch_size * options_.dp_size : left <= 0;
}

Batch Loader::next() {
  expect(!epoch_done(), "data loader: a batch is wanted from epoch ", epoch_, ", which is done");
  const std::int64_t end = std::min(next_ + options_.batch_size * options_.dp_size, dataset_->size());
  std::vector<Sample> samples;
  std::vector<std::int64_t> row_numbers;
  for (std::int64_t at = next_ + options_.dp_rank; at < end; at += options_.dp_size) {
    samples.push_back(dataset_->sample(options_.shuffle ? order_[static_cast<std::size_t>(at)] : at));
    row_numbers.push_back(epoch_ * dataset_->size() + at);
  }
  next_ = end;
  Batch batch = collate(samples, dataset_->pad_id());
  batch.row_numbers = std::move(row_numbers);
  return batch;
}

std::vector<Batch> Loader::next_group(std::int64_t count) {
  std::vector<Batch> group;
  while (static_cast<std::int64_t>(group.size()) < count && !epoch_done()) group.push_back(next());
  return group;
}

void Loader::start_epoch(std::int64_t epoch) {
  epoch_ = epoch;
  next_ = 0;
  if (options_.shuffle)
    order_ = permutation(dataset_->size(),
                         static_cast<std::uint64_t>(options_.seed) + static_cast<std::uint64_t>(epoch));
}

LoaderState Loader::state() const {
  return {epoch_, next_, dataset_->size(), options_.shuffle ? options_.seed : -1};
}

void Loader::restore(const LoaderState& state) {
  require(state.rows == dataset_->size(), "data loader: the saved position is one in ", state.rows,
          " rows, the data set has ", dataset_->size());
  const std::int64_t seed = options_.shuffle ? options_.seed : -1;
  require(state.seed == seed, "data loader: the saved position belongs to shuffle seed ", state.seed,
          ", this run has ", seed, " (-1: not shuffled)");
  require(state.epoch >= 0 && state.next_index >= 0 && state.next_index <= state.rows,
          "data loader: the saved position is row ", state.next_index, " of ", state.rows, " in epoch ",
          state.epoch);
  start_epoch(state.epoch);
  next_ = state.next_index;
}

}  // namespace nemocube
