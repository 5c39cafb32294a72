#include "data/loader/loader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "data/datasets/permutation.h"

namespace nemocube {

namespace {

/// The rows of each batch.
std::vector<std::vector<Sample>> samples_of(const Dataset& dataset,
                                            const std::vector<std::vector<std::int64_t>>& batches) {
  std::vector<std::vector<Sample>> samples;
  for (const auto& rows : batches) {
    std::vector<Sample>& of_batch = samples.emplace_back();
    for (const std::int64_t row : rows) of_batch.push_back(dataset.sample(row));
  }
  return samples;
}

}  // namespace

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

bool Loader::has_batch_at(std::int64_t begin) const {
  const std::int64_t left = dataset_->size() - begin;
  return options_.drop_last ? left >= options_.batch_size * options_.dp_size : left > 0;
}

bool Loader::epoch_done() const { return !has_batch_at(next_); }

std::int64_t Loader::end_of_batch(std::int64_t begin) const {
  return std::min(begin + options_.batch_size * options_.dp_size, dataset_->size());
}

Loader::Places Loader::places_from(std::int64_t begin) const {
  Places places;
  for (std::int64_t at = begin + options_.dp_rank; at < end_of_batch(begin); at += options_.dp_size)
    places.push_back(at);
  return places;
}

std::vector<Loader::Places> Loader::group_from(std::int64_t begin, std::int64_t count) const {
  std::vector<Places> batches;
  for (; std::ssize(batches) < count && has_batch_at(begin); begin = end_of_batch(begin))
    batches.push_back(places_from(begin));
  return batches;
}

std::vector<Loader::Rows> Loader::rows_of(const std::vector<Places>& batches) const {
  std::vector<Rows> rows;
  for (const Places& places : batches) {
    Rows& of_batch = rows.emplace_back();
    for (const std::int64_t at : places)
      of_batch.push_back(options_.shuffle ? order_[static_cast<std::size_t>(at)] : at);
  }
  return rows;
}

Batch Loader::next() {
  expect(!epoch_done(), "data loader: a batch is wanted from epoch ", epoch_, ", which is done");
  return std::move(next_group(1).front());
}

std::vector<Batch> Loader::next_group(std::int64_t count) {
  const std::vector<Places> batches = group_from(next_, count);
  std::optional<Ahead> ahead = std::exchange(ahead_, std::nullopt);
  const bool made = ahead && ahead->epoch == epoch_ && ahead->batches == batches;
  const auto samples = made ? ahead->samples.get() : samples_of(*dataset_, rows_of(batches));
  std::vector<Batch> group;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    Batch& batch = group.emplace_back(collate(samples[i], dataset_->pad_id()));
    for (const std::int64_t at : batches[i]) batch.row_numbers.push_back(epoch_ * dataset_->size() + at);
    next_ = end_of_batch(next_);
  }
  if (dataset_->made_on_demand()) make_ahead(count);
  return group;
}

void Loader::make_ahead(std::int64_t count) {
  std::vector<Places> batches = group_from(next_, count);
  if (batches.empty()) return;
  try {
    auto samples = std::async(std::launch::async,
                              [data = dataset_, rows = rows_of(batches)] { return samples_of(*data, rows); });
    ahead_ = Ahead{std::move(batches), epoch_, std::move(samples)};
  } catch (const std::system_error&) {
    // No thread starts: the rows are made when they are wanted.
  }
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
