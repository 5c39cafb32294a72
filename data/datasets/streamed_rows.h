#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/datasets/line_index.h"
#include "data/datasets/row_source.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// The same rows as rows_in_memory(), for files in JSON lines that may be larger than the memory. sample()
/// reads and tokenises a row. Each row takes 16 bytes of memory: the place of its line, its number of tokens,
/// and the CRC-32C of the line.
class StreamedRows final : public Dataset {
 public:
  struct Options {
    /// Called during a pass over the rows: `done` of `total` rows of all ranks, by this rank's progress.
    std::function<void(std::int64_t done, std::int64_t total)> on_rows = {};
    OnBytes on_bytes = {};  ///< while a file is searched for lines
    /// The ranks that make the same data set together: each tokenises a part of the rows, and waits for all
    /// others. Null: this rank alone.
    Communicator* ranks = nullptr;
  };
  /// Looks for the lines of the files, then makes each selected row once, to count its tokens and to find its
  /// faults. Rows that are not selected are not checked.
  /// Throws the Errors of rows_in_memory(), and an Error naming the file that is not in JSON lines or differs
  /// among the ranks.
  explicit StreamedRows(RowSource source) : StreamedRows(std::move(source), Options{}) {}
  StreamedRows(RowSource source, const Options& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(lines_.size()); }
  /// Throws Error naming the file and the line when the line has changed.
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t i) const override;
  std::int64_t pad_id() const override { return source_.pad_id; }
  bool made_on_demand() const override { return true; }
  std::vector<DataFile> files() const override;

 private:
  /// The kept data of a row.
  struct Made {
    static constexpr std::uint32_t refused = 0xffffffff;
    std::uint32_t tokens =
        0;                  ///< before the shift; 0: the row does not stay; refused: its RowMaker threw Error
    std::uint32_t sum = 0;  ///< of its line
  };
  struct Line {
    std::int64_t row;  ///< the number of the line among the lines of all files
    const LineIndex* file;
    std::int64_t in_file;
    std::string place() const;  ///< for messages: "line 7"
    std::string text() const { return file->text(in_file); }
  };
  /// The lines that are rows: all lines, or with skip_invalid the lines that are
  /// JSON and that the source's `read` accepts.
  std::vector<std::uint32_t> valid_lines(const Options& options) const;
  RowMaker read(const Line& line, const std::string& text) const;
  /// The message that `read` throws, or with `made` its RowMaker; empty where the line is a row.
  std::string error_of(const Line& line, bool made = false) const;
  std::optional<TokenRow> made_or_refused(
      const RowMaker& maker) const;  ///< nothing: skip_invalid, and refused
  void leave_out_refused();
  void drop_rows_without_labels();
  Line at(std::int64_t row) const;
  Line line_of(std::int64_t i) const;  ///< of row i of the data set
  std::int64_t lines() const;          ///< of all files

  RowSource source_;
  RowOptions layout_;                 ///< of the finished rows
  std::deque<LineIndex> indices_;     ///< of each file
  std::vector<std::uint32_t> lines_;  ///< of each row
  std::vector<Made> made_;            ///< of each row
};

}  // namespace nemocube
