#include "data/datasets/streamed_rows.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "core/log.h"
#include "data/datasets/json_rows.h"
#include "data/files/crc32c.h"
#include "parallel/comm/together.h"

namespace nemocube {

namespace {

void want_lines(const std::filesystem::path& file) {
  require(has_rows_by_line(file), file.string(),
          ": want JSON lines, a file named .jsonl or .ndjson with a row on every line, since other files are "
          "read whole; \"jq -c '.[]' FILE\" writes a list as lines");
}

std::uint32_t sum_of(const std::string& line) { return crc32c(std::as_bytes(std::span(line))); }

/// Throws Error on every rank unless all see the same file.
void want_same(Communicator* ranks, const LineIndex& index) {
  const std::string own = cat(index.size(), " lines and ", to_string(index.sum()));
  const std::vector<std::string> all = gather_texts(ranks, own);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    require(all[rank] == all[0], index.path().string(),
            ": want the same file on all ranks, but that of rank 0 has ", all[0], " and that of rank ", rank,
            " has ", all[rank]);
}

/// fn(0) ... fn(count - 1), of which each rank computes a part.
template <class T>
std::vector<T> on_all_ranks(std::int64_t count, const StreamedRows::Options& options,
                            const std::function<T(std::int64_t)>& fn) {
  // Rank r takes every ranks-th row from r on, so that files with their long rows together are divided
  // evenly.
  const std::int64_t ranks = options.ranks ? options.ranks->size() : 1;
  const std::int64_t rank = options.ranks ? options.ranks->rank() : 0;
  const auto rows_of = [&](std::int64_t r) { return (count - r + ranks - 1) / ranks; };
  std::vector<T> own(static_cast<std::size_t>(rows_of(rank)));
  together(options.ranks, [&] {
    constexpr std::int64_t at_once = 4096;  // between two reports
    for (std::int64_t begin = 0; begin < std::ssize(own); begin += at_once) {
      const std::int64_t end = std::min(begin + at_once, std::ssize(own));
      for_rows(end - begin, [&](std::int64_t i) {
        own[static_cast<std::size_t>(begin + i)] = fn(rank + (begin + i) * ranks);
      });
      if (options.on_rows) options.on_rows(std::min(count, end * ranks), count);
    }
  });
  if (ranks == 1) return own;
  std::vector<std::int64_t> counts;
  for (std::int64_t r = 0; r < ranks; ++r) counts.push_back(rows_of(r));
  const std::vector<T> by_rank = options.ranks->host_all_gather_v<T>(own, counts);
  std::vector<T> all(by_rank.size());
  std::size_t from = 0;
  for (std::int64_t r = 0; r < ranks; ++r)
    for (std::int64_t i = r; i < count; i += ranks) all[static_cast<std::size_t>(i)] = by_rank[from++];
  return all;
}

}  // namespace

StreamedRows::StreamedRows(RowSource source, const Options& options) : source_(std::move(source)) {
  check_row_options(source_.what, source_.layout);
  for (const std::filesystem::path& file : source_.files) {
    want_lines(file);
    together(options.ranks, [&] { indices_.emplace_back(file, line_limits.max_bytes, options.on_bytes); });
    want_same(options.ranks, indices_.back());
  }
  require(lines() < std::numeric_limits<std::uint32_t>::max(), source_.what, ": has ", lines(),
          " lines; want fewer than ", std::numeric_limits<std::uint32_t>::max());
  {
    const std::vector<std::uint32_t> valid = valid_lines(options);
    const auto chosen = selected_rows(source_.what, source_.selection, std::ssize(valid));
    lines_.reserve(chosen.size());
    for (const std::int64_t row : chosen) lines_.push_back(valid[static_cast<std::size_t>(row)]);
  }
  made_ = on_all_ranks<Made>(size(), options, [&](std::int64_t i) -> Made {
    const Line line = line_of(i);
    const std::string text = line.text();
    std::optional<TokenRow> row = made_or_refused(read(line, text));
    if (!row) return {Made::refused, 0};
    return {stays(*row, source_.layout) ? static_cast<std::uint32_t>(row->size()) : 0, sum_of(text)};
  });
  leave_out_refused();
  drop_rows_without_labels();
  layout_ = layout_for(source_, std::ranges::max(made_, {}, &Made::tokens).tokens);
}

std::optional<TokenRow> StreamedRows::made_or_refused(const RowMaker& maker) const {
  try {
    return maker();
  } catch (const Error&) {
    if (!source_.skip_invalid) throw;
    return std::nullopt;
  }
}

void StreamedRows::leave_out_refused() {
  const std::int64_t rows = size();
  const auto refused = [](const Made& made) { return made.tokens == Made::refused; };
  const auto bad = std::ranges::find_if(made_, refused);
  std::string first;
  if (bad != made_.end()) first = error_of(line_of(bad - made_.begin()), true);
  std::size_t row = 0;
  std::erase_if(lines_, [&](std::uint32_t) { return refused(made_[row++]); });
  std::erase_if(made_, refused);
  report_skipped(source_.files, source_.content, rows, rows - size(), first);
}

void StreamedRows::drop_rows_without_labels() {
  const std::int64_t rows = size();
  std::vector<std::string> first_ids;  // of rows that are dropped
  std::size_t kept = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const Made made = made_[static_cast<std::size_t>(i)];
    if (made.tokens > 0) {
      lines_[kept] = lines_[static_cast<std::size_t>(i)];
      made_[kept++] = made;
    } else if (first_ids.size() < 3) {
      const Line line = line_of(i);
      first_ids.push_back(read(line, line.text())().id);
    }
  }
  lines_.resize(kept);
  made_.resize(kept);
  report_dropped(source_.what, rows, rows - size(), first_ids, source_.layout);
}

std::vector<std::uint32_t> StreamedRows::valid_lines(const Options& options) const {
  std::vector<std::uint32_t> valid(static_cast<std::size_t>(lines()));
  std::iota(valid.begin(), valid.end(), 0u);
  std::string first;
  if (source_.skip_invalid) {
    const auto good = on_all_ranks<std::uint8_t>(
        lines(), options, [&](std::int64_t row) -> std::uint8_t { return error_of(at(row)).empty(); });
    const auto bad = std::ranges::find(good, 0);
    if (bad != good.end()) first = error_of(at(bad - good.begin()));
    std::erase_if(valid, [&](std::uint32_t row) { return good[row] == 0; });
  }
  report_skipped(source_.files, source_.content, lines(), lines() - std::ssize(valid), first);
  return valid;
}

std::string StreamedRows::error_of(const Line& line, bool made) const {
  const std::string text = line.text();  // a file that cannot be read is no fault of the row
  try {
    const RowMaker maker = read(line, text);
    if (made) maker();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::int64_t StreamedRows::lines() const {
  std::int64_t count = 0;
  for (const LineIndex& index : indices_) count += index.size();
  return count;
}

StreamedRows::Line StreamedRows::at(std::int64_t row) const {
  auto file = indices_.begin();
  std::int64_t in_file = row;
  for (; in_file >= file->size(); ++file) in_file -= file->size();
  return {row, &*file, in_file};
}

StreamedRows::Line StreamedRows::line_of(std::int64_t i) const {
  return at(lines_[static_cast<std::size_t>(i)]);
}

std::string StreamedRows::Line::place() const { return line_place(file->number(in_file)); }

RowMaker StreamedRows::read(const Line& line, const std::string& text) const {
  const std::filesystem::path& file = line.file->path();
  const Json value = parse_line(text, file, line.file->number(line.in_file));
  return source_.read(JsonView(value, file.string(), line.place()), line.row);
}

std::vector<DataFile> StreamedRows::files() const {
  std::vector<DataFile> files;
  for (const LineIndex& index : indices_) files.push_back({index.path(), index.sum()});
  return files;
}

Sample StreamedRows::sample(std::int64_t i) const {
  check_index(i);
  const Line line = line_of(i);
  const std::string text = line.text();
  require(sum_of(text) == made_[static_cast<std::size_t>(i)].sum, line.file->path().string(), ": ",
          line.place(), " has changed since the run began");
  TokenRow row = read(line, text)();
  truncate_row(row, source_.layout.truncation, source_.layout.seq_length);
  return finish_row(row, layout_, source_.pad_id);
}

std::int64_t StreamedRows::content_length(std::int64_t i) const {
  check_index(i);
  return content_positions(made_[static_cast<std::size_t>(i)].tokens, layout_);
}

}  // namespace nemocube
