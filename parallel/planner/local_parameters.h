#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "parallel/data_parallel/flat_unit.h"
#include "parallel/parallel_model/parallel_plan.h"
#include "parallel/tensor_parallel/cuts.h"

/// The parts of a model's parameters that ranks of a plan hold, computed from sizes alone.
namespace nemocube {

/// The buffer of some parameters of a unit (FlatUnit).
struct LocalFlat {
  struct Piece {
    std::int64_t start, count;   ///< elements in the buffer
    std::vector<Range> counted;  ///< see TensorCut
  };
  bool expert;
  DType dtype;
  bool trained;  ///< else there are values alone
  std::vector<Piece> pieces;
  std::int64_t size = 0, shard = 0;  ///< see FlatLayout

  /// The ranks that divide the buffer or, with ZeroLevel::none, hold all of it.
  Group shard_group(ZeroLevel level) const;
  /// The elements of the buffer that the rank at `position` of the group keeps of divided tensors.
  Range own(ZeroLevel level, std::int64_t position) const;
};

/// A unit of DataParallel: the mixer of a block, or everything else.
struct LocalUnit {
  std::vector<LocalFlat> flats;
  std::map<Group, std::int64_t> partial;  ///< elements of gradients that other ranks have parts of
};

/// The part of a model that a tensor-parallel rank of a pipeline rank holds. Its sizes are the same in all
/// context-, data- and expert-parallel places.
struct LocalParameters {
  LocalUnit root;
  std::map<std::int64_t, LocalUnit> blocks;
  std::int64_t elements = 0;         ///< of all tensors
  std::int64_t buffer_bytes = 0;     ///< of the tensors without gradient, which every rank keeps whole
  std::int64_t counted_buffers = 0;  ///< their elements that are counted here, see TensorCut

  /// Calls fn(unit) for the root and every block.
  template <class Fn>
  void for_each_unit(Fn&& fn) const {
    fn(root);
    for (const auto& [block, unit] : blocks) fn(unit);
  }
};

/// The parts of all ranks, each computed at its first use. A run of one rank has
/// no buffers, and its pieces have no gaps.
class ModelParts {
 public:
  /// Throws Error as TensorCuts does.
  ModelParts(const ModelSetup& setup, const ParallelPlan& plan, DType dtype);
  const LocalParameters& of(const GridPlace& place);

 private:
  LocalParameters make(const GridPlace& place) const;

  ParallelPlan plan_;
  DType dtype_;
  bool copies_embeddings_;
  std::vector<TensorSpec> specs_;
  TensorCuts cuts_;
  std::map<std::pair<std::int64_t, std::int64_t>, LocalParameters> parts_;  // by tp and pp
};

}  // namespace nemocube
