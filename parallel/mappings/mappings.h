#pragma once
#include <memory>
#include <span>
#include <vector>

#include "core/autograd.h"
#include "parallel/comm/communicator.h"

/// Collectives as differentiable operations. Every rank of the group calls the same operations in the same
/// order, forward and backward; the backward pass of an operation runs on a rank only when the gradient of
/// its result arrives there, so all ranks must want gradients of the same things.
///
/// x is [T, d] in f32, f64 or bf16, its rows may be strided; results are contiguous. `rows` says how many
/// rows each rank of the group has, in the order of ranks, 0 included: the parts of the ranks one after
/// another are the whole. Sums are formed in the order of ranks (parallel/comm/communicator.h). A group of
/// one rank sends nothing, and the operations return x itself.
/// Source: Megatron-LM, megatron/core/tensor_parallel/mappings.py.
namespace nemocube {

/// y = x.                                              dx = sum over ranks of dy
Var copy_to_ranks(Context& ctx, const Var& x, Communicator& group);
/// y = sum over ranks of x.                            dx = dy
Var sum_over_ranks(Context& ctx, const Var& x, Communicator& group);
/// y = this rank's rows of x, which all ranks have.    dx = the dy of all ranks, one after another
Var own_rows(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group);
/// own_rows() where dx is a part of a gradient that is summed over ranks later: nothing is sent.
/// y = this rank's rows of x, which all ranks have.    dx = dy in this rank's rows, and zeros
Var own_rows_to_sum(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group);
/// The reverse of own_rows_to_sum(), where y is a part of a sum over ranks: nothing is sent.
/// y = x in this rank's rows, and zeros.               dx = this rank's rows of dy
Var own_rows_of_sum(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group);
/// y = this rank's rows of the sum over ranks of x.    dx = the dy of all ranks, one after another
Var sum_to_own_rows(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group);

/// What the ranks do with the gathered rows.
enum class Consumer {
  cut,         ///< each computes a part of the gradient: the parts are added
  replicated,  ///< each computes the whole gradient, and all get the same
};
/// y = the x of all ranks, one after another.          dx = this rank's rows of dy, or of the sum over ranks
///                                                     of dy
Var all_rows(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group,
             Consumer consumer);

/// in_rows[r] consecutive rows of x go to rank r; y has out_rows[r] rows from rank r, in the order of ranks.
/// dx: the same with in_rows and out_rows exchanged.
Var exchange_rows(Context& ctx, const Var& x, std::vector<std::int64_t> in_rows,
                  std::vector<std::int64_t> out_rows, Communicator& group);

/// exchange_rows() in two parts: work of the rank between the two runs beside the exchange, and the backward
/// pass of such work runs beside the exchange of backward.
class RowExchange {
 public:
  /// Starts the exchange.
  RowExchange(Context& ctx, const Var& x, std::vector<std::int64_t> in_rows,
              std::vector<std::int64_t> out_rows, Communicator& group);
  /// Returns y, which kernels may use from now on. To be called once, on all ranks at the same place.
  Var finish(Context& ctx) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace nemocube
