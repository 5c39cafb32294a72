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
#include "data/files/on_bytes.h"
#include "data/json/atomic_file.h"
#include "data/safetensors/format.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// Takes the bytes of a tensor, in order, in pieces of any size.
using ByteSink = std::function<void(std::span<const std::byte>)>;

/// Neighbouring elements of a tensor, in row-major order. The callback produces their bytes as the file is
/// written, so that conversions never hold more than a part.
struct TensorPiece {
  std::int64_t first = 0, count = 0;  ///< elements
  std::function<void(const ByteSink&)> write;
};

/// A tensor to be written: its header entry, and the pieces that this process writes. The pieces of all ranks
/// together hold every element once; the pieces of one rank ascend.
struct TensorSource {
  std::string name;
  std::string dtype;  ///< as in the file: "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::vector<TensorPiece> pieces;
  std::int64_t bytes() const;        ///< of the whole tensor
  std::int64_t piece_bytes() const;  ///< of the pieces
};

/// Writes `value` (any row stride) as `stored`, converting between floating dtypes part by part. The piece
/// begins at element `first`.
TensorPiece piece_of(const Tensor& value, DType stored, std::int64_t first = 0);
/// A tensor whose value this process holds: one piece.
TensorSource source_of(std::string name, const Tensor& value, DType stored);

using SafetensorsMetadata = std::map<std::string, std::string>;
inline const SafetensorsMetadata pytorch_metadata{{"format", "pt"}};  ///< required by Hugging Face's loaders

/// Writes a file atomically (see AtomicFile), tensors ordered by element size, largest first, then by name,
/// so that each is aligned. Returns the sum of the file. Throws Error for two tensors of one name and when
/// the file cannot be written.
///
/// The ranks of `group` write one file: all call this function with the same path in a directory that all
/// see, the same metadata, names, dtypes and shapes, and each with its own pieces. No tensor is gathered. All
/// return the same sum. Where one rank fails, all throw (parallel/comm/together.h) and no file remains;
/// std::logic_error names tensor and element where pieces overlap or leave a gap.
FileSum write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                          const SafetensorsMetadata& metadata = pytorch_metadata,
                          Communicator* group = nullptr, const OnBytes& on_bytes = {});

/// Which file holds which tensors.
using FileShards = std::map<std::string, std::vector<TensorSource>>;
/// Fills files in the given order up to `most_bytes` of tensors each (a larger tensor gets a file of its
/// own): "model.safetensors" when one is enough, else "model-00001-of-00003.safetensors" and so on. 0: one
/// file.
FileShards plan_shards(std::vector<TensorSource> tensors, std::int64_t most_bytes);
/// Writes the files, then, unless the only one is "model.safetensors", their index. Returns the
/// sum of each file, by file name. With a group see write_safetensors(); rank 0 writes the index.
FileSums write_safetensors_model(const std::filesystem::path& directory, FileShards files,
                                 Communicator* group = nullptr, const OnBytes& on_bytes = {});

}  // namespace nemocube
