#include "data/datasets/packing.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "core/log.h"

namespace nemocube {

namespace {

using Packs = std::vector<std::vector<std::int64_t>>;

Packs pack_in_order(std::span<const std::int64_t> lengths, std::int64_t pack_size) {
  Packs packs;
  std::int64_t fill = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] == 0) continue;
    if (packs.empty() || fill + lengths[i] > pack_size) {
      packs.emplace_back();
      fill = 0;
    }
    packs.back().push_back(static_cast<std::int64_t>(i));
    fill += lengths[i];
  }
  return packs;
}

Packs pack_least_filled(std::span<const std::int64_t> lengths, std::int64_t pack_size) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  Packs packs;
  using Bin = std::pair<std::int64_t, std::size_t>;  // fill, pack
  std::priority_queue<Bin, std::vector<Bin>, std::greater<>> bins;
  for (const std::size_t i : order) {
    if (lengths[i] == 0) continue;
    Bin bin{0, packs.size()};
    if (!bins.empty() && bins.top().first + lengths[i] <= pack_size) {
      bin = bins.top();
      bins.pop();
    } else {
      packs.emplace_back();
    }
    packs[bin.second].push_back(static_cast<std::int64_t>(i));
    bins.push({bin.first + lengths[i], bin.second});
  }
  return packs;
}

}  // namespace

std::vector<std::vector<std::int64_t>> pack_rows(std::span<const std::int64_t> lengths, Packing strategy,
                                                 std::int64_t pack_size) {
  return strategy == Packing::thd ? pack_in_order(lengths, pack_size) : pack_least_filled(lengths, pack_size);
}

PackedDataset::PackedDataset(std::shared_ptr<const Dataset> rows, const PackOptions& options)
    : rows_(std::move(rows)), pack_size_(options.pack_size) {
  require(pack_size_ >= 1, "packed_sequence_size: want 1 or more, got ", pack_size_);
  require(!options.max_packs || *options.max_packs >= 1, "max_packs: want 1 or more, got ",
          options.max_packs.value_or(0));
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(rows_->size()));
  std::string first_ids;
  for (std::int64_t i = 0; i < rows_->size(); ++i) {
    if (options.on_rows) options.on_rows(i, rows_->size());
    std::int64_t& length = lengths[static_cast<std::size_t>(i)];
    length = rows_->content_length(i);
    if (length <= pack_size_) continue;
    if (!options.drop_long || dropped_ < 3) {
      const std::string id = rows_->sample(i).id;
      require(options.drop_long, "packed sequences: row '", id, "' has ", counted(length, "position"),
              ", packed_sequence_size is ", pack_size_);
      first_ids += (dropped_ > 0 ? ", " : "") + id;
    }
    ++dropped_;
    length = 0;
  }
  packs_ = pack_rows(lengths, options.strategy, pack_size_);
  require(!packs_.empty(), "packed sequences: none of ", counted(rows_->size(), "row"),
          " fits packed_sequence_size ", pack_size_);
  if (options.max_packs && size() > *options.max_packs)
    packs_.resize(static_cast<std::size_t>(*options.max_packs));
  for (const auto& pack : packs_) {
    std::int64_t& content = content_lengths_.emplace_back(0);
    for (const std::int64_t row : pack) content += lengths[static_cast<std::size_t>(row)];
  }
  if (dropped_ > 0)
    log_warning("packed sequences: ", dropped_, " of ", counted(rows_->size(), "row"),
                dropped_ == 1 ? " is" : " are", " longer than ", pack_size_, " and ",
                dropped_ == 1 ? "is" : "are", " dropped: ", first_ids, dropped_ > 3 ? ", ..." : "");
}

std::int64_t PackedDataset::content_length(std::int64_t i) const {
  check_index(i);
  return content_lengths_[static_cast<std::size_t>(i)];
}

Sample PackedDataset::sample(std::int64_t i) const {
  check_index(i);
  Sample pack;
  for (const std::int64_t index : packs_[static_cast<std::size_t>(i)]) {
    const Sample row = rows_->sample(index);
    const std::int64_t content = row.content_length();
    pack.id += (pack.id.empty() ? "" : ",") + row.id;
    pack.lengths.insert(pack.lengths.end(), row.lengths.begin(), row.lengths.end());
    pack.input_ids.insert(pack.input_ids.end(), row.input_ids.begin(), row.input_ids.begin() + content);
    pack.labels.insert(pack.labels.end(), row.labels.begin(), row.labels.begin() + content);
  }
  pack.input_ids.resize(static_cast<std::size_t>(pack_size_), pad_id());
  pack.labels.resize(static_cast<std::size_t>(pack_size_), ignored_label);
  return pack;
}

}  // namespace nemocube
