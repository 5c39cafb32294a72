#pragma once
#include <functional>
#include <vector>

#include "core/shard.h"
#include "model/parameters.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// Where the gradient of a parameter comes from.
struct GradientSource {
  /// The parameter belongs to routed experts: the ranks of "expt_dp" hold it, not those of "dp_cp".
  bool expert = false;
  /// The ranks that hold the same values and each form a part of the gradient, for
  /// their rows or heads. Null: no such ranks.
  Communicator* parts = nullptr;
  /// The elements of the local tensor that have parts elsewhere, row-major and ascending.
  std::vector<Range> elements;
};
using GradientSourceOf = std::function<GradientSource(const Parameter&)>;

/// Adds the parts of gradients of some parameters, one message for each group of ranks. All ranks of a group
/// hold these parameters, in the same order.
class GradientParts {
 public:
  GradientParts() = default;  ///< of no parameters
  GradientParts(const std::vector<Parameter*>& parameters, const GradientSourceOf& source_of);
  /// A sum on its way.
  struct Sum {
    Work work;
    Tensor message;
    std::vector<Tensor> places;  // of its elements, in the gradients
    /// Returns when the sum is in place.
    void finish();
  };
  /// Starts the sums. Every parameter has a gradient by now, which nobody may read or write until its sum is
  /// finished.
  [[nodiscard]] std::vector<Sum> start() const;

 private:
  struct Piece {
    GradNode* node;
    std::vector<Range> elements;
  };
  struct PartsGroup {
    Communicator* ranks;
    std::vector<Piece> pieces;
  };
  std::vector<PartsGroup> groups_;
};

}  // namespace nemocube
