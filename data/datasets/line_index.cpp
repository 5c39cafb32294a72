#include "data/datasets/line_index.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "core/error.h"
#include "data/datasets/text.h"

namespace nemocube {

namespace {
constexpr std::int64_t lines_of_begin = 256;  // between two entries of begins_
}

LineIndex::LineIndex(const std::filesystem::path& path, std::int64_t max_line_bytes, const OnBytes& on_bytes)
    : file_(path) {
  constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max();
  std::int64_t begin = 0, told = 0;  // of the line that is looked at
  sum_ = for_each_file_line(path, max_line_bytes, [&](std::string_view text, std::int64_t number) {
    if (begin >= file_.size()) return;  // written since the file was opened
    // The last line may have no line feed.
    const std::int64_t bytes = std::min(std::ssize(text) + 1, file_.size() - begin);
    const bool keeps_begin = size() % lines_of_begin == 0;
    if (!strip(text).empty()) {
      require(size() < most, path.string(), ": want at most ", most, " lines, got more");
      if (keeps_begin) begins_.push_back(begin);
      lengths_.push_back(static_cast<std::uint32_t>(bytes));
    } else {
      blank_before_.push_back(static_cast<std::uint32_t>(size()));
      if (!keeps_begin) {
        require(lengths_.back() + bytes <= most, path.string(), ": line ", number, ": want at most ", most,
                " bytes of a line and the blank ones behind it, got more");
        lengths_.back() += static_cast<std::uint32_t>(bytes);
      }
    }
    begin += bytes;
    constexpr std::int64_t step = std::int64_t{16} << 20;
    if (on_bytes && begin - told >= step) on_bytes(told = begin, file_.size());
  });
  lengths_.shrink_to_fit();
}

std::string LineIndex::text(std::int64_t line) const {
  expect(0 <= line && line < size(), "line ", line, " of ", size());
  const auto first = line / lines_of_begin * lines_of_begin;
  const std::int64_t begin = std::accumulate(lengths_.begin() + first, lengths_.begin() + line,
                                             begins_[static_cast<std::size_t>(line / lines_of_begin)]);
  std::string text(static_cast<std::size_t>(length(line)), '\0');
  file_.read_at(begin, std::as_writable_bytes(std::span(text)));
  text.resize(std::min(text.size(), text.find('\n')));
  return text;
}

std::int64_t LineIndex::number(std::int64_t line) const {
  const auto blank = std::ranges::upper_bound(blank_before_, static_cast<std::uint32_t>(line));
  return line + (blank - blank_before_.begin()) + 1;
}

}  // namespace nemocube
