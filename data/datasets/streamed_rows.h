#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/datasets/line_index.h"
#include "data/datasets/row_source.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// The rows of rows_in_memory(), of files in JSON lines that may be larger than the memory: a row is read and tokenised
/// when it is asked for. What stays in memory is where the lines are, and of each row how many tokens it has and the CRC-32C of
/// its line: 16 bytes a row.
class StreamedRows final : public Dataset {
 public:
  struct Options {
    /// Called while rows are tokenised for the first time, with those of all ranks.
    std::function<void(std::int64_t done, std::int64_t total)> on_rows = {};
    OnBytes on_bytes = {};  ///< while a file is searched for lines
    /// Ranks that make the same data set together: each tokenises a part of the rows, while the others may have to wait for it.
    /// Null: this rank alone.
    Communicator* ranks = nullptr;
  };
  /// Looks for the lines of the files, then makes each selected row once, to count its tokens and to find its faults.
  /// Throws Error naming the file when it is not in JSON lines, and as rows_in_memory() does; rows that are not selected
  /// are not checked.
  explicit StreamedRows(RowSource source) : StreamedRows(std::move(source), Options{}) {}
  StreamedRows(RowSource source, const Options& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(lines_.size()); }
  /// Throws Error naming the file and the line when the line is no longer what it was.
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t i) const override;
  std::int64_t pad_id() const override { return source_.pad_id; }
  bool made_on_demand() const override { return true; }

 private:
  /// What stays of a row.
  struct Made {
    std::uint32_t tokens = 0;  ///< before the shift; 0: the row does not stay
    std::uint32_t sum = 0;     ///< of its line
  };
  /// fn(i) for 0 <= i < count, of which each rank computes a part.
  std::vector<Made> on_all_ranks(std::int64_t count, const Options& options,
                                 const std::function<Made(std::int64_t)>& fn) const;
  /// The lines that hold a row, as far as they are looked at.
  std::vector<std::uint32_t> valid_lines(const Options& options) const;
  RowMaker read(std::int64_t line, const std::string& text) const;
  /// A line of all files, counted from 0.
  struct Line {
    const LineIndex* file;
    std::int64_t in_file;
    std::int64_t number() const { return file->number(in_file); }
    std::string text() const { return file->text(in_file); }
  };
  Line at(std::int64_t line) const;
  std::int64_t lines() const;  ///< of all files

  RowSource source_;
  RowOptions layout_;                 ///< of the finished rows
  std::deque<LineIndex> indices_;     ///< of each file
  std::vector<std::uint32_t> lines_;  ///< of each row
  std::vector<Made> made_;            ///< of each row
};

}  // namespace nemocube
