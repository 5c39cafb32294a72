#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/safetensors/writer.h"

/// Files with tensors of any stored dtype, for tests.
namespace nemocube::testing {

struct StoredBlob {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

inline void write_blobs(const std::filesystem::path& path, const std::vector<StoredBlob>& blobs) {
  std::vector<TensorSource> sources;
  for (const StoredBlob& blob : blobs) {
    const auto elements = std::ssize(blob.bytes) * 8 / stored_bits(blob.dtype);
    sources.push_back({blob.name, blob.dtype, blob.shape, {{0, elements, [blob](const ByteSink& sink) {
                                                              sink(blob.bytes);
                                                            }}}});
  }
  write_safetensors(path, std::move(sources));
}

}  // namespace nemocube::testing
