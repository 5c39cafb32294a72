#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/datasets/dataset.h"

/// From the token ids of a row to a Sample: truncation, shift and padding. Nothing here knows a tokenizer.
///
/// With `padding: max_length` and length S the ids are cut to at most S, shifted (S - 1 positions remain) and
/// padded to S. A truncated row therefore always ends in one pad. The last id of a shorter row stays as an
/// input but counts as padding. This is the layout of NeMo Automodel.
namespace nemocube {

enum class Padding {
  none,        ///< no padding here; the loader pads to the longest row of a batch
  max_length,  ///< rows of seq_length positions
};

enum class Truncation {
  none,
  left,     ///< keeps the tail, where the answer is
  right,    ///< keeps the head; rows whose answer is cut away have no labels
  context,  ///< removes tokens from the left of the context, then from the left of the rest if needed
};

struct RowOptions {
  std::int64_t seq_length = 0;  ///< 0: not given
  Padding padding = Padding::none;
  Truncation truncation = Truncation::none;
  /// The last id stays as an input without a label, so that rows have as many positions as ids.
  bool keep_last = false;
  bool append_eos = true;                          ///< append EOS as a target, unless the row ends with it
  std::optional<std::int64_t> eos_id{}, pad_id{};  ///< of the model, for tokenizers whose files name none
};
/// Throws Error naming `what` when padding or truncation needs a seq_length and it is missing or below 2.
void check_row_options(std::string_view what, const RowOptions& options);

/// A tokenised row, before truncation and shift.
struct TokenRow {
  std::string id;
  std::vector<std::int32_t> ids;
  std::vector<bool> supervised;    ///< for each id: whether it is a target
  std::int64_t leading = 0;        ///< number of first ids (BOS) that truncation from the left keeps
  std::int64_t context_begin = 0;  ///< [context_begin, context_end): ids that Truncation::context may remove
  std::int64_t context_end = 0;

  void append(std::int64_t id_, bool supervised_);
  std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
  /// Number of targets after the shift. The first id never counts, because no position predicts it.
  std::int64_t label_tokens() const;
};

/// Shortens the row to at most seq_length ids.
void truncate_row(TokenRow& row, Truncation how, std::int64_t seq_length);

/// Positions, without padding, of a finished row of `ids` ids.
std::int64_t content_positions(std::int64_t ids, const RowOptions& options);

/// Shift and padding. Throws Error when the row does not fit into options.seq_length.
Sample finish_row(const TokenRow& row, const RowOptions& options, std::int64_t pad_id);

/// Truncates the row. Returns whether it stays in a data set: whether it has a label. Throws Error when it
/// does not fit into options.seq_length.
bool stays(TokenRow& row, const RowOptions& options);
/// One warning that counts the rows without a label and names the first three. `rows` counts all. Throws
/// Error naming `what` when none has a label.
void report_dropped(std::string_view what, std::int64_t rows, std::int64_t dropped,
                    std::span<const std::string> first_ids, const RowOptions& options);

/// Truncated rows, kept in memory. Rows without labels are dropped, with one warning that counts and names
/// them. Throws Error naming `what` when no row is left.
class RowDataset final : public Dataset {
 public:
  /// `files`: the files of the rows.
  RowDataset(std::string_view what, std::vector<TokenRow> rows, RowOptions options, std::int64_t pad_id,
             std::vector<DataFile> files = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t i) const override;
  std::int64_t pad_id() const override { return pad_id_; }
  std::vector<DataFile> files() const override { return files_; }
  std::int64_t dropped() const { return dropped_; }

 private:
  const TokenRow& row(std::int64_t i) const;
  std::vector<TokenRow> rows_;
  RowOptions options_;
  std::int64_t pad_id_;
  std::vector<DataFile> files_;
  std::int64_t dropped_ = 0;
};

}  // namespace nemocube
