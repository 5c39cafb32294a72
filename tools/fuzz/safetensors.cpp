// The reader of safetensors headers. Input: the beginning of a file, up to the end of its header; 4,096 bytes
// of tensors follow.
#include <cstring>

#include "data/safetensors/format.h"
#include "tools/fuzz/json_mutator.h"

using namespace nemocube;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < safetensors_length_bytes) return 0;
  constexpr std::int64_t bytes_of_tensors = 4096;
  const std::int64_t file_bytes = static_cast<std::int64_t>(size) + bytes_of_tensors;
  std::uint64_t length = 0;
  std::memcpy(&length, data, sizeof length);
  const std::string_view header = fuzz::text_of(data, size).substr(safetensors_length_bytes);
  fuzz::allow_refusal([&] { safetensors_header_length(length, file_bytes, "file"); });
  return fuzz::keep_if(fuzz::allow_refusal([&] {
    const SafetensorsHeader parsed = parse_safetensors_header(header, file_bytes, "file");
    for (const StoredTensor& tensor : parsed.tensors)
      fuzz::want(tensor.begin >= 0 && tensor.begin <= tensor.end &&
                 parsed.data_begin + tensor.end <= file_bytes);
    format_safetensors_header(parsed.tensors, parsed.metadata);
  }));
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t longest,
                                               unsigned seed) {
  return fuzz::mutate_json(data, size, longest, seed, safetensors_length_bytes, size);
}
