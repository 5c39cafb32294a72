#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "model/stack.h"

namespace nemocube {

/// Where a pass through a block begins with an exchange with other ranks, on whose result the rest of the
/// pass waits. Transfers that are to run beside the pass are best started behind this exchange: started
/// earlier they would share its links, and the pass would wait for longer.
///
///                   first in the forward pass        first in the backward pass
///     Mamba         into in_proj                     out of out_proj
///     attention     into q_proj, k_proj, v_proj      out of o_proj
///     MLP           into up_proj                     out of down_proj
///     MoE                                            of the routed experts' results
///     embeddings                                     out of them
///
/// The forward pass of an MoE block begins with the router, which computes before rows are sent. Several
/// blocks on one norm (SharedWays) have their exchanges together: the first block forward, the last one
/// backward.
class FirstExchanges {
 public:
  /// Wraps the transforms that are installed at these points of the model, so that `then` is called behind
  /// each, on every rank at the same place. `experts_elsewhere`: some of the routed experts are on other
  /// ranks. The model must outlive this object.
  FirstExchanges(Stack& model, bool experts_elsewhere, const std::function<void()>& then);
  FirstExchanges(const FirstExchanges&) = delete;
  FirstExchanges& operator=(const FirstExchanges&) = delete;
  /// The model has the transforms of before.
  ~FirstExchanges();

  /// Whether `then` will be called in the pass through a block, by its number in the whole model.
  bool in_forward(std::int64_t block) const { return forward_.contains(block); }
  bool in_backward(std::int64_t block) const { return backward_.contains(block); }
  static constexpr std::int64_t embeddings = -1;  ///< as a block: they come before block 0

 private:
  std::set<std::int64_t> forward_, backward_;
  std::vector<std::pair<Transform*, Transform>> replaced_;
};

}  // namespace nemocube
