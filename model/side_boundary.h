#pragma once
#include <functional>
#include <vector>

#include "core/shard.h"
#include "model/config.h"

/// What crosses a cut of the model between two blocks: the residual stream, and the side rows that blocks
/// behind the cut read of parts before it.
namespace nemocube {

/// The rows that pass a cut, as a rank has them.
struct SideBoundary {
  struct Passed {
    TensorName name;
    std::int64_t width;  ///< of a row on this rank
    bool all_rows;       ///< SideRows::all_rows()
  };
  std::int64_t hidden_size;  ///< of the residual stream
  std::vector<Passed> rows;  ///< ModelConfig::side_rows_across(), in this order

  /// The tensors that cross, the residual stream first, of so many rows of the stream and of all rows on the
  /// rank.
  std::vector<Shape> shapes(std::int64_t stream, std::int64_t all) const;
  /// Their elements.
  std::int64_t numel(std::int64_t stream, std::int64_t all) const;
  /// The rows of the stream of tensors with so many elements together.
  std::int64_t stream_rows(std::int64_t numel, std::int64_t all) const;
};

/// The cut before `block`. `shard`: ModelPart::shard.
SideBoundary side_boundary(const ModelSetup& setup, const std::function<Shard(const TensorSpec&)>& shard,
                           std::int64_t block);

}  // namespace nemocube
