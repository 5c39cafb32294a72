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
#include "parallel/comm/together.h"

namespace nemocube {

namespace {

void want_lines(const std::filesystem::path& file) {
  require(has_rows_by_line(file), file.string(),
          ": want JSON lines, a file named .jsonl or .ndjson with a row on every line, since other files are "
          "read whole; \"jq -c '.[]' FILE\" writes a list as lines");
}

/// The numbers of the first three entries that are 0.
std::vector<std::int64_t> first_zeros(std::span<const std::uint32_t> values) {
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < values.size() && found.size() < 3; ++i)
    if (values[i] == 0) found.push_back(static_cast<std::int64_t>(i));
  return found;
}

/// Throws Error unless all ranks have the same value.
void want_same(Communicator* ranks, const LineIndex& index) {
  for (const std::int64_t own : {index.bytes(), index.size()})
    require(largest(ranks, own) == own && largest(ranks, -own) == -own, index.path().string(),
            ": want the same file on all ranks; this one has ", index.size(), " lines and ", index.bytes(),
            " bytes, that of another rank differs");
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
  tokens_ = on_all_ranks(size(), options, [&](std::int64_t i) -> std::uint32_t {
    TokenRow row = read(lines_[static_cast<std::size_t>(i)])();
    return stays(row, source_.layout) ? static_cast<std::uint32_t>(row.size()) : 0;
  });
  std::vector<std::string> first_ids;
  for (const std::int64_t i : first_zeros(tokens_))
    first_ids.push_back(read(lines_[static_cast<std::size_t>(i)])().id);
  report_dropped(source_.what, size(), std::ranges::count(tokens_, 0u), first_ids, source_.layout);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] == 0) continue;
    lines_[kept] = lines_[i];
    tokens_[kept++] = tokens_[i];
  }
  lines_.resize(kept);
  tokens_.resize(kept);
  layout_ = layout_for(source_, std::ranges::max(tokens_));
}

std::vector<std::uint32_t> StreamedRows::on_all_ranks(
    std::int64_t count, const Options& options, const std::function<std::uint32_t(std::int64_t)>& fn) const {
  const std::int64_t ranks = options.ranks ? options.ranks->size() : 1;
  const auto first_of = [&](std::int64_t rank) {
    return count / ranks * rank + std::min(rank, count % ranks);
  };
  const std::int64_t rank = options.ranks ? options.ranks->rank() : 0, first = first_of(rank);
  std::vector<std::uint32_t> own(static_cast<std::size_t>(first_of(rank + 1) - first));
  together(options.ranks, [&] {
    constexpr std::int64_t at_once = 4096;  // between two reports
    for (std::int64_t begin = 0; begin < std::ssize(own); begin += at_once) {
      for_rows(std::min(at_once, std::ssize(own) - begin),
               [&](std::int64_t i) { own[static_cast<std::size_t>(begin + i)] = fn(first + begin + i); });
      if (options.on_rows) options.on_rows(std::min(count, (begin + at_once) * ranks), count);
    }
  });
  if (!options.ranks) return own;
  std::vector<std::int64_t> counts;
  for (std::int64_t r = 0; r < ranks; ++r) counts.push_back(first_of(r + 1) - first_of(r));
  return options.ranks->host_all_gather_v<std::uint32_t>(own, counts);
}

std::vector<std::uint32_t> StreamedRows::valid_lines(const Options& options) const {
  std::vector<std::uint32_t> valid(static_cast<std::size_t>(lines()));
  std::iota(valid.begin(), valid.end(), 0u);
  if (!source_.skip_invalid) {
    report_skipped(source_.files, source_.content, lines(), 0, "");
    return valid;
  }
  std::vector<std::uint32_t> good = on_all_ranks(lines(), options, [&](std::int64_t line) -> std::uint32_t {
    try {
      read(line);
      return 1;
    } catch (const Error&) {
      return 0;
    }
  });
  std::string first;
  if (const auto bad = first_zeros(good); !bad.empty()) try {
      read(bad.front());
    } catch (const Error& error) {
      first = error.what();
    }
  report_skipped(source_.files, source_.content, lines(), std::ranges::count(good, 0u), first);
  std::erase_if(valid, [&](std::uint32_t line) { return good[line] == 0; });
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

RowMaker StreamedRows::read(std::int64_t line) const {
  const Line found = at(line);
  const std::filesystem::path& file = found.file->path();
  const Json value = parse_line(found.file->text(found.in_file), file, found.number());
  return source_.read(JsonView(value, file.string(), line_place(found.number())), line);
}

Sample StreamedRows::sample(std::int64_t i) const {
  check_index(i);
  const std::int64_t line = lines_[static_cast<std::size_t>(i)], want = tokens_[static_cast<std::size_t>(i)];
  TokenRow row = read(line)();
  truncate_row(row, source_.layout.truncation, source_.layout.seq_length);
  require(row.size() == want, at(line).file->path().string(), ": ", line_place(at(line).number()),
          " has changed since the run began: want ", counted(want, "token"), ", got ", row.size());
  return finish_row(row, layout_, source_.pad_id);
}

std::int64_t StreamedRows::content_length(std::int64_t i) const {
  check_index(i);
  return content_positions(tokens_[static_cast<std::size_t>(i)], layout_);
}

}  // namespace nemocube
