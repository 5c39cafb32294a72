#include "data/megatron/indexed_tokens.h"

#include <array>
#include <bit>
#include <cstring>

#include "core/error.h"

namespace nemocube {

namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr std::int64_t header_bytes = 34;

/// Bytes of an id; 0 for codes that are no integers.
int id_bytes(int code) {
  constexpr std::array<int, 9> bytes{0, 1, 1, 2, 4, 8, 0, 0, 2};
  return code >= 0 && code < static_cast<int>(bytes.size()) ? bytes[static_cast<std::size_t>(code)] : 0;
}

/// The arrays of the file are not aligned, so they are copied. `sum` goes on with their bytes.
template <class T>
std::vector<T> read_array(const RegularFile& file, std::int64_t count, FileSum& sum) {
  std::vector<T> values(static_cast<std::size_t>(count));
  file.read_at(sum.bytes, std::as_writable_bytes(std::span(values)));
  sum.add(std::as_bytes(std::span(values)));
  return values;
}

template <class T>
T value_at(std::span<const std::byte> bytes, std::size_t begin) {
  T value;
  std::memcpy(&value, bytes.data() + begin, sizeof value);
  return value;
}

struct Header {
  int code = 0;
  std::int64_t sequences = 0, documents = 0;  ///< the second is D
};

Header read_header(const RegularFile& idx, FileSum& sum) {
  const std::string& file = idx.path().string();
  require(idx.size() >= header_bytes, file, ": want an index of Megatron's with ", header_bytes,
          " bytes or more, got ", idx.size());
  std::array<std::byte, header_bytes> bytes;
  idx.read_at(0, bytes);
  sum.add(bytes);
  require(std::memcmp(bytes.data(), magic.data(), magic.size()) == 0, file,
          ": want an index of Megatron's, which begins with MMIDIDX; other bytes are there");
  const auto version = value_at<std::uint64_t>(bytes, 9);
  require(version == 1, file, ": want version 1, got ", version);
  const auto sequences = value_at<std::uint64_t>(bytes, 18), documents = value_at<std::uint64_t>(bytes, 26);
  const auto most = static_cast<std::uint64_t>(idx.size());
  require(sequences <= most && documents <= most &&
              idx.size() == header_bytes + static_cast<std::int64_t>(12 * sequences + 8 * documents),
          file, ": ", sequences, " sequences and ", documents, " document indices do not make a file of ",
          idx.size(),
          " bytes; is it cut off, or one of several modes (multimodal), which are not in this build?");
  const Header header{static_cast<int>(bytes[17]), static_cast<std::int64_t>(sequences),
                      static_cast<std::int64_t>(documents)};
  require(id_bytes(header.code) > 0, file, ": want ids of an integer type (codes 1 to 5 and 8), got code ",
          header.code);
  return header;
}

void check_documents(const std::string& file, const std::vector<std::int64_t>& documents,
                     std::int64_t sequences) {
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : documents[i - 1];
    require(documents[i] >= least && documents[i] <= sequences && (i > 0 || documents[i] == 0), file,
            ": document index ", i, " is ", documents[i], "; want numbers from 0 to ", sequences,
            " that do not descend");
  }
  require(!documents.empty() && documents.back() == sequences, file, ": the document indices end at ",
          documents.empty() ? 0 : documents.back(), "; want ", sequences, ", the number of sequences");
}

template <class T>
void append(std::span<const std::byte> bytes, std::vector<std::int64_t>& ids) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(T))
    ids.push_back(static_cast<std::int64_t>(value_at<T>(bytes, at)));
}

void append_ids(int code, std::span<const std::byte> bytes, std::vector<std::int64_t>& ids) {
  switch (code) {
    case 1:
      return append<std::uint8_t>(bytes, ids);
    case 2:
      return append<std::int8_t>(bytes, ids);
    case 3:
      return append<std::int16_t>(bytes, ids);
    case 4:
      return append<std::int32_t>(bytes, ids);
    case 5:
      return append<std::int64_t>(bytes, ids);
    default:
      return append<std::uint16_t>(bytes, ids);
  }
}

}  // namespace

std::string token_file_prefix(const std::string& name) {
  return name.ends_with(".bin") || name.ends_with(".idx") ? name.substr(0, name.size() - 4) : name;
}

IndexedTokens::IndexedTokens(const std::string& prefix) : prefix_(prefix), bin_(prefix + ".bin") {
  const RegularFile idx(prefix + ".idx");
  const std::string file = idx.path().string();
  const Header header = read_header(idx, idx_sum_);
  code_ = header.code;
  lengths_ = read_array<std::int32_t>(idx, header.sequences, idx_sum_);
  begins_ = read_array<std::int64_t>(idx, header.sequences, idx_sum_);
  check_documents(file, read_array<std::int64_t>(idx, header.documents, idx_sum_), header.sequences);
  const std::int64_t bytes = id_bytes(code_);
  for (std::size_t i = 0; i < lengths_.size(); ++i)
    require(lengths_[i] >= 0 && begins_[i] >= 0 && begins_[i] <= bin_.size() &&
                lengths_[i] <= (bin_.size() - begins_[i]) / bytes,
            file, ": sequence ", i, " has ", lengths_[i], " ids of ", bytes, " bytes from byte ", begins_[i],
            " on, and ", bin_.path().string(), " has ", bin_.size(), " bytes");
  bin_sum_ = sampled_sum(bin_);
}

void IndexedTokens::read(std::int64_t sequence, std::int64_t offset, std::int64_t count,
                         std::int64_t id_limit, std::vector<std::int64_t>& ids) const {
  expect(offset >= 0 && count >= 0 && offset + count <= length(sequence), "ids [", offset, ", ",
         offset + count, ") of a sequence of ", length(sequence));
  const std::int64_t bytes = id_bytes(code_);
  std::vector<std::byte> raw(static_cast<std::size_t>(count * bytes));
  bin_.read_at(begins_[static_cast<std::size_t>(sequence)] + offset * bytes, raw);
  const std::size_t first = ids.size();
  append_ids(code_, raw, ids);
  for (std::size_t i = first; i < ids.size(); ++i)
    require(ids[i] >= 0 && ids[i] < id_limit, bin_.path().string(), ": sequence ", sequence, " holds id ",
            ids[i], " at position ", offset + static_cast<std::int64_t>(i - first),
            "; want ids from 0 to below ", id_limit);
}

}  // namespace nemocube
