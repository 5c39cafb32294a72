#pragma once
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "data/json/test_dir.h"

/// Writes Megatron's token files, for tests.
namespace nemocube::testing {

template <class T>
void append_bytes(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);  // NOLINT: bytes of a number
}

/// PREFIX.idx for sequences of these lengths, each a document, with ids of `id_bytes` and this code.
inline std::string token_index(const std::vector<std::int64_t>& lengths, int code, std::int64_t id_bytes) {
  std::string text("MMIDIDX\0\0", 9);
  append_bytes(text, std::uint64_t{1});
  append_bytes(text, static_cast<std::uint8_t>(code));
  append_bytes(text, static_cast<std::uint64_t>(lengths.size()));
  append_bytes(text, static_cast<std::uint64_t>(lengths.size() + 1));
  for (const std::int64_t length : lengths) append_bytes(text, static_cast<std::int32_t>(length));
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    append_bytes(text, begin);
    begin += length * id_bytes;
  }
  for (std::size_t i = 0; i <= lengths.size(); ++i) append_bytes(text, static_cast<std::int64_t>(i));
  return text;
}

/// Files in which sequence i holds the ids first + 50 i, first + 50 i + 1, ...
template <class Id = std::int32_t>
void write_token_files(const std::filesystem::path& prefix, const std::vector<std::int64_t>& lengths,
                       std::int64_t first = 0, int code = 4) {
  std::string ids;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    for (std::int64_t t = 0; t < lengths[i]; ++t)
      append_bytes(ids, static_cast<Id>(first + 50 * static_cast<std::int64_t>(i) + t));
  spit(prefix.string() + ".bin", ids);
  spit(prefix.string() + ".idx", token_index(lengths, code, sizeof(Id)));
}

}  // namespace nemocube::testing
