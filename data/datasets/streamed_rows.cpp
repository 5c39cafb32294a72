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

/// The numbers of the first three rows that do not stay.
template <class Made>
std::vector<std::int64_t> first_dropped(const std::vector<Made>& rows) {
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < rows.size() && found.size() < 3; ++i)
    if (rows[i].tokens == 0) found.push_back(static_cast<std::int64_t>(i));
  return found;
}

std::uint32_t sum_of(const std::string& line) { return crc32c(std::as_bytes(std::span(line))); }

/// Throws Error on every rank unless all see the same file.
void want_same(Communicator* ranks, const LineIndex& index) {
  const std::string own = cat(index.size(), " lines and ", index.bytes(), " bytes");
  const std::vector<std::string> all = gather_texts(ranks, own);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    require(all[rank] == all[0], index.path().string(),
            ": want the same file on all ranks, but that of rank 0 has ", all[0], " and that of rank ", rank,
            " has ", all[rank]);
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
  made_ = on_all_ranks(size(), options, [&](std::int64_t i) -> Made {
    const std::int64_t line = lines_[static_cast<std::size_t>(i)];
    const std::string text = at(line).text();
    TokenRow row = read(line, text)();
    return {stays(row, source_.layout) ? static_cast<std::uint32_t>(row.size()) : 0, sum_of(text)};
  });
  const std::int64_t rows = size(), dropped = std::ranges::count(made_, 0u, &Made::tokens);
  std::vector<std::string> first_ids;
  for (const std::int64_t i : first_dropped(made_)) {
    const std::int64_t line = lines_[static_cast<std::size_t>(i)];
    first_ids.push_back(read(line, at(line).text())().id);
  }
  report_dropped(source_.what, rows, dropped, first_ids, source_.layout);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < made_.size(); ++i) {
    if (made_[i].tokens == 0) continue;
    lines_[kept] = lines_[i];
    made_[kept++] = made_[i];
  }
  lines_.resize(kept);
  made_.resize(kept);
  layout_ = layout_for(source_, std::ranges::max(made_, {}, &Made::tokens).tokens);
}

std::vector<StreamedRows::Made> StreamedRows::on_all_ranks(
    std::int64_t count, const Options& options, const std::function<Made(std::int64_t)>& fn) const {
  // Rank r takes every ranks-th row from r on, so that files with their long rows together are divided evenly.
  const std::int64_t ranks = options.ranks ? options.ranks->size() : 1;
  const std::int64_t rank = options.ranks ? options.ranks->rank() : 0;
  const auto rows_of = [&](std::int64_t r) { return (count - r + ranks - 1) / ranks; };
  std::vector<Made> own(static_cast<std::size_t>(rows_of(rank)));
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
  const std::vector<Made> by_rank = options.ranks->host_all_gather_v<Made>(own, counts);
  std::vector<Made> all(by_rank.size());
  std::size_t from = 0;
  for (std::int64_t r = 0; r < ranks; ++r)
    for (std::int64_t i = r; i < count; i += ranks) all[static_cast<std::size_t>(i)] = by_rank[from++];
  return all;
}

std::vector<std::uint32_t> StreamedRows::valid_lines(const Options& options) const {
  std::vector<std::uint32_t> valid(static_cast<std::size_t>(lines()));
  std::iota(valid.begin(), valid.end(), 0u);
  if (!source_.skip_invalid) {
    report_skipped(source_.files, source_.content, lines(), 0, "");
    return valid;
  }
  const std::vector<Made> good = on_all_ranks(lines(), options, [&](std::int64_t line) -> Made {
    try {
      read(line, at(line).text());
      return {1, 0};
    } catch (const Error&) {
      return {0, 0};
    }
  });
  std::string first;
  if (const auto bad = first_dropped(good); !bad.empty()) try {
      read(bad.front(), at(bad.front()).text());
    } catch (const Error& error) {
      first = error.what();
    }
  report_skipped(source_.files, source_.content, lines(), std::ranges::count(good, 0u, &Made::tokens), first);
  std::erase_if(valid, [&](std::uint32_t line) { return good[line].tokens == 0; });
  return valid;
}

std::int64_t StreamedRows::lines() const {
  std::int64_t count = 0;
  for (const LineIndex& index : indices_) count += index.size();
  return count;
}

StreamedRows::Line StreamedRows::at(std::int64_t line) const {
  auto file = indices_.begin();
  for (; line >= file->size(); ++file) line -= file->size();
  return {&*file, line};
}

RowMaker StreamedRows::read(std::int64_t line, const std::string& text) const {
  const Line found = at(line);
  const std::filesystem::path& file = found.file->path();
  const Json value = parse_line(text, file, found.number());
  return source_.read(JsonView(value, file.string(), line_place(found.number())), line);
}

Sample StreamedRows::sample(std::int64_t i) const {
  check_index(i);
  const std::int64_t line = lines_[static_cast<std::size_t>(i)];
  const std::string text = at(line).text();
  require(sum_of(text) == made_[static_cast<std::size_t>(i)].sum, at(line).file->path().string(), ": ",
          line_place(at(line).number()), " has changed since the run began");
  TokenRow row = read(line, text)();
  truncate_row(row, source_.layout.truncation, source_.layout.seq_length);
  return finish_row(row, layout_, source_.pad_id);
}

std::int64_t StreamedRows::content_length(std::int64_t i) const {
  check_index(i);
  return content_positions(made_[static_cast<std::size_t>(i)].tokens, layout_);
}

}  // namespace nemocube
