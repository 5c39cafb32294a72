#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "data/json/atomic_file.h"
#include "data/safetensors/format.h"

namespace nemocube {

/// Takes the bytes of a tensor, in order, in pieces of any size.
using ByteSink = std::function<void(std::span<const std::byte>)>;

/// A tensor to be written: its header entry, and a callback that produces the bytes when they are needed, so
/// that conversions and gathers never hold more than a piece of the tensor.
struct TensorSource {
  std::string name;
  std::string dtype;  ///< as in the file: "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::function<void(const ByteSink&)> write;
  std::int64_t bytes() const;
};

/// Writes `value` (any row stride) as `stored`, converting between floating dtypes piece by piece.
TensorSource source_of(std::string name, const Tensor& value, DType stored);

using SafetensorsMetadata = std::map<std::string, std::string>;
inline const SafetensorsMetadata pytorch_metadata{{"format", "pt"}};  ///< required by Hugging Face's loaders

/// Writes a file atomically (see AtomicFile), tensors ordered by element size, largest first, then by name,
/// so that each is aligned. Returns the sum of the file. Throws Error for two tensors of one name and when
/// the file cannot be written.
FileSum write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                          const SafetensorsMetadata& metadata = pytorch_metadata);

/// Which file holds which tensors.
using ShardPlan = std::map<std::string, std::vector<TensorSource>>;
/// Fills files in the given order up to `most_bytes` of tensors each (a larger tensor gets a file of its
/// own): "model.safetensors" when one is enough, else "model-00001-of-00003.safetensors" and so on. 0: one
/// file.
ShardPlan plan_shards(std::vector<TensorSource> tensors, std::int64_t most_bytes);
/// Writes the files of a plan, then, unless the only one is "model.safetensors", their index. Returns the
/// sum of each file, by file name.
FileSums write_safetensors_model(const std::filesystem::path& directory, ShardPlan plan);

}  // namespace nemocube
