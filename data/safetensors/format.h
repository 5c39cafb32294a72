#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

/// The safetensors file format: eight bytes with the length N of the header (little endian), N bytes of JSON
/// with dtype, shape and place of each tensor, then the tensors, without gaps or overlaps.
/// https://github.com/huggingface/safetensors#format
namespace nemocube {

constexpr std::int64_t most_header_bytes = 100'000'000;

/// Bits of one element of a dtype spelled as in a file ("F32", "BF16", "F4", ...); 0 for unknown names.
int stored_bits(std::string_view dtype);
/// The file's spelling of a dtype.
std::string_view stored_name(DType dtype);
/// The dtype that a file's spelling stands for; nothing for dtypes without a DType (such as "F16").
std::optional<DType> dtype_of_stored(std::string_view dtype);

struct StoredTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  ///< bytes, counted from the start of the data
  std::int64_t bytes() const { return end - begin; }
};

/// "F32 [2, 3]"
std::string describe(const StoredTensor& tensor);

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< the entry "__metadata__"
  std::int64_t data_begin = 0;                  ///< byte of the file where the data starts
};

constexpr std::int64_t safetensors_length_bytes = 8;  ///< with which a file begins
/// The length N of the header, from the first bytes of a file of `file_bytes`. Throws Error "what: ..." when
/// the file cannot hold such a header.
std::int64_t safetensors_header_length(std::uint64_t first_bytes, std::int64_t file_bytes,
                                       const std::string& what);
/// Reads and checks a header, the N bytes of JSON; afterwards every tensor lies inside the file of
/// `file_bytes` and has the bytes of its shape and dtype. Throws Error "what: ..." for a damaged file.
SafetensorsHeader parse_safetensors_header(std::string_view header, std::int64_t file_bytes,
                                           const std::string& what);

/// Length and header, ready to be written: padded with spaces so that the data starts at a multiple of 8.
/// `begin` and `end` of the tensors are written as given.
std::string format_safetensors_header(std::span<const StoredTensor> tensors,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace nemocube
