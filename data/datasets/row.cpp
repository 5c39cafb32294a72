#include "data/datasets/row.h"

#include <algorithm>

#include "core/log.h"
#include "core/quote.h"

namespace nemocube {

namespace {

void erase_ids(TokenRow& row, std::int64_t begin, std::int64_t count) {
  row.ids.erase(row.ids.begin() + begin, row.ids.begin() + begin + count);
  row.supervised.erase(row.supervised.begin() + begin, row.supervised.begin() + begin + count);
  const auto moved = [&](std::int64_t at) { return at <= begin ? at : std::max(begin, at - count); };
  row.context_begin = moved(row.context_begin);
  row.context_end = moved(row.context_end);
}

/// Positions of the finished row. Throws Error when a fixed length is too short for the row.
std::int64_t row_width(const TokenRow& row, const RowOptions& options) {
  const std::int64_t content = content_positions(row.size(), options);
  if (options.padding != Padding::max_length) return content;
  require(content <= options.seq_length, "row ", quote(row.id), " has ", counted(content, "position"),
          ", seq_length is ", options.seq_length, "; set truncation: true");
  return options.seq_length;
}

}  // namespace

void check_row_options(std::string_view what, const RowOptions& options) {
  if (options.padding == Padding::none && options.truncation == Truncation::none) return;
  require(options.seq_length >= 2, what,
          ": padding to max_length and truncation want a seq_length of 2 or more, got ",
          options.seq_length == 0 ? std::string("none") : std::to_string(options.seq_length));
}

void TokenRow::append(std::int64_t id_, bool supervised_) {
  ids.push_back(static_cast<std::int32_t>(id_));
  supervised.push_back(supervised_);
}

std::int64_t TokenRow::label_tokens() const {
  return supervised.empty() ? 0 : std::count(supervised.begin() + 1, supervised.end(), true);
}

void truncate_row(TokenRow& row, Truncation how, std::int64_t seq_length) {
  if (how == Truncation::none || row.size() <= seq_length) return;
  if (how == Truncation::right) {
    erase_ids(row, seq_length, row.size() - seq_length);
    return;
  }
  if (how == Truncation::context)
    erase_ids(row, row.context_begin, std::min(row.size() - seq_length, row.context_end - row.context_begin));
  const std::int64_t kept_in_front = row.leading < seq_length ? row.leading : 0;
  erase_ids(row, kept_in_front, row.size() - seq_length);
}

std::int64_t content_positions(std::int64_t ids, const RowOptions& options) {
  return std::max<std::int64_t>(ids - (options.keep_last ? 0 : 1), 0);
}

Sample finish_row(const TokenRow& row, const RowOptions& options, std::int64_t pad_id) {
  const std::int64_t content = content_positions(row.size(), options);
  const std::int64_t width = row_width(row, options);
  Sample sample;
  sample.id = row.id;
  sample.input_ids.assign(static_cast<std::size_t>(width), pad_id);
  sample.labels.assign(static_cast<std::size_t>(width), ignored_label);
  const std::int64_t inputs = row.size() < width ? row.size() : content;
  std::copy_n(row.ids.begin(), inputs, sample.input_ids.begin());
  for (std::size_t t = 0; t + 1 < row.ids.size(); ++t)
    if (row.supervised[t + 1]) sample.labels[t] = row.ids[t + 1];
  if (content > 0) sample.lengths.push_back(content);
  return sample;
}

bool stays(TokenRow& row, const RowOptions& options) {
  truncate_row(row, options.truncation, options.seq_length);
  if (row.label_tokens() == 0) return false;
  row_width(row, options);  // throws now, not in the middle of a run
  return true;
}

void report_dropped(std::string_view what, std::int64_t rows, std::int64_t dropped,
                    std::span<const std::string> first_ids, const RowOptions& options) {
  const bool cut = options.truncation == Truncation::right;
  require(rows > dropped, what, ": none of ", counted(rows, "row"), " has a label",
          options.seq_length > 0 ? cat(" (seq_length ", options.seq_length,
                                       cut ? ", truncation from the right cuts the answers away" : "", ")")
                                 : "");
  if (dropped == 0) return;
  std::string names;
  for (const std::string& id : first_ids.first(std::min<std::size_t>(first_ids.size(), 3)))
    names += (names.empty() ? "" : ", ") + excerpt(id);
  log_warning(what, ": ", dropped, " of ", counted(rows, "row"),
              dropped == 1 ? " has no label and is dropped: " : " have no label and are dropped: ", names,
              dropped > 3 ? ", ..." : "");
}

RowDataset::RowDataset(std::string_view what, std::vector<TokenRow> rows, RowOptions options,
                       std::int64_t pad_id, std::vector<DataFile> files)
    : options_(options), pad_id_(pad_id), files_(std::move(files)) {
  check_row_options(what, options_);
  std::vector<std::string> dropped;
  rows_.reserve(rows.size());
  for (TokenRow& row : rows) {
    if (!stays(row, options_)) {
      ++dropped_;
      if (dropped.size() < 3) dropped.push_back(row.id);
      continue;
    }
    row.ids.shrink_to_fit();
    rows_.push_back(std::move(row));
  }
  report_dropped(what, std::ssize(rows), dropped_, dropped, options_);
}

const TokenRow& RowDataset::row(std::int64_t i) const {
  check_index(i);
  return rows_[static_cast<std::size_t>(i)];
}

Sample RowDataset::sample(std::int64_t i) const { return finish_row(row(i), options_, pad_id_); }

std::int64_t RowDataset::content_length(std::int64_t i) const {
  return content_positions(row(i).size(), options_);
}

}  // namespace nemocube
