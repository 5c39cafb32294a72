#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/shard.h"
#include "data/files/on_bytes.h"
#include "data/safetensors/reader.h"
#include "parallel/comm/communicator.h"

/// Reads parts of global tensors from files that divide these tensors in any other way. No process
/// holds more of a tensor than it asks for, and the ranks of one node read each byte once and send it
/// to each other. Codes of quantized tensors travel as they are stored, with their scales; two
/// neighbouring reads may read the same scales.
namespace nemocube {

/// A part of a global tensor as a file holds it. The stored tensor, of any shape,
/// has the elements of `shard` in their order.
struct StoredPart {
  StoredIn at;
  Shard shard;
};

/// A part of a global tensor that a rank wants.
struct WantedPart {
  std::string name;  ///< of the global tensor
  Shard shard;
  /// Contiguous, with the elements of `shard`, of a floating dtype, on any device. A meta tensor where this
  /// rank wants nothing.
  Tensor into;
};

struct BytesRead {
  std::int64_t from_files = 0;
  std::int64_t from_ranks = 0;  ///< read by other ranks of the node
};

/// Reads all of `wanted`, each from the parts that stored(part) returns, converting to
/// the dtype of `into`. Parts that hold the same elements hold the same values. The ranks
/// of `node` call together, with the same names in the same order and the same stored
/// parts; null: one rank. on_bytes counts the stored bytes of all of `wanted` up to the
/// place in the list that has been reached.
/// errors  Error naming the tensor where no part holds a wanted element, or where a part cannot be
///         read, on the ranks that notice: call within together() (parallel/comm/together.h)
BytesRead read_parts(std::span<const WantedPart> wanted,
                     const std::function<std::vector<StoredPart>(const WantedPart&)>& stored,
                     Communicator* node = nullptr, const OnBytes& on_bytes = {});

}  // namespace nemocube
