#include "data/files/file_sum.h"

#include <vector>

#include "core/error.h"
#include "data/files/crc32c.h"
#include "data/files/regular_file.h"

namespace nemocube {

void FileSum::add(std::span<const std::byte> more) {
  bytes += std::ssize(more);
  crc32c = nemocube::crc32c(more, crc32c);
}

std::string to_string(const FileSum& sum) { return cat(sum.bytes, " bytes, sum ", sum.crc32c); }

FileSum sampled_sum(const RegularFile& file) {
  constexpr std::int64_t pieces = 16, piece = 64 << 10;
  const bool whole = file.size() <= pieces * piece;
  FileSum sum;
  std::vector<std::byte> bytes(static_cast<std::size_t>(whole ? file.size() : piece));
  for (std::int64_t i = 0; i < (whole ? 1 : pieces); ++i) {
    // Not (size - piece) * i / (pieces - 1), which overflows for the largest files.
    const std::int64_t room = file.size() - piece,
                       begin = whole ? 0 : room / (pieces - 1) * i + room % (pieces - 1) * i / (pieces - 1);
    file.read_at(begin, bytes);
    sum.add(bytes);
  }
  sum.bytes = file.size();
  return sum;
}

}  // namespace nemocube
