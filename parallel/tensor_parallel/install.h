#pragma once
#include <memory>
#include <vector>

#include "model/stack.h"
#include "parallel/comm/process_groups.h"
#include "parallel/mappings/mappings.h"
#include "parallel/tensor_parallel/plan.h"

namespace nemocube {

/// Tensor parallelism of a model whose part was built with the cuts of the plan (TensorCuts): installs the
/// collectives between the ranks of the group "tp".
///
/// The ranks of the group have the same rows of a microbatch. Between the blocks every rank has all rows;
/// with sequence parallel it has its part, of even_sizes(rows, ranks). Parts differ by at most one row, and
/// any number of rows works, also one of a decoding step. Forward and (in brackets) backward:
///
///                                without sequence parallel                with sequence parallel
///     into a layer that is cut   copy_to_ranks (sum)                      all_rows (sum to own rows)
///     out of it                  sum_over_ranks                           sum_to_own_rows (all rows)
///     into a replicated mixer                                             all_rows (own rows)
///     out of it                                                           own_rows (all rows)
///     into the routed experts    own_rows (all rows)
///     out of them                all_rows (own rows)
///
/// Mixers on one norm (SharedWays) count as one layer, cut or replicated: their common input and the sum of
/// their outputs are sent once. Their routed experts take the rank's rows from all rows, and their results
/// join the sum in these rows:
///
///     into the routed experts    own_rows_to_sum
///     out of them                own_rows_of_sum
///
/// In this table the embeddings count as the way out of a layer, and lm_head as the way into one. Routers,
/// latent projections and routed experts work on the rank's part of the rows in both cases, so that no token
/// goes through an expert twice. Their records of a microbatch (MoeRecord) are about these rows. Loss and its
/// labels are of all rows of the group, on every rank.
///
/// With one tp rank only row cuts are installed, `group_rows` included: the cut of the MoE blocks, which no
/// other object sets, and the cuts of layers that ask for one (TransformPoint::rows).
/// Source: Megatron-LM, megatron/core/tensor_parallel/layers.py, and moe/moe_layer.py.
class TensorParallel {
 public:
  /// `group_rows` are the rows that this tp group has of a microbatch; empty: all. The model, the groups and
  /// this object are to live as long as the model computes.
  TensorParallel(Stack& model, const TensorParallelPlan& plan, const ProcessGroups& groups,
                 RowCut group_rows = {});
  TensorParallel(const TensorParallel&) = delete;  // the model's transforms lead here
  TensorParallel& operator=(const TensorParallel&) = delete;

  /// The rows that this tp group has of a microbatch.
  Sequences rows_of_group(const Sequences& whole) const;
  /// Rows of the residual stream on this rank.
  std::int64_t residual_rows(const Sequences& whole) const;
  /// logits [rows, V] = those of all ranks, from `own` [rows, tokens of this rank's lm_head].
  void gather_vocabulary(const Tensor& logits, const Tensor& own) const;

 private:
  Transform transform_at(const TensorParallelPlan& plan, const TransformPoint& point) const;
  static bool is_cut(const TensorParallelPlan& plan, const TransformPoint& point);
  Transform way_in(bool cut) const;   ///< into a layer or mixer
  Transform way_out(bool cut) const;  ///< out of it
  /// `in_shared_way`: the routed experts lie beside a shared way that has all rows.
  Transform routed_in(bool in_shared_way) const;
  Transform routed_out(bool in_shared_way) const;
  using RowMapping = Var (*)(Context&, const Var&, std::span<const std::int64_t>, Communicator&);
  Transform by_rows(RowMapping mapping) const;
  Transform to_all_rows(Consumer consumer) const;
  /// Where the ranks `sharers` hold parts of the same groups of channels, their norms run over all of them.
  void share_norm_groups(Stack& model, Communicator& sharers);
  /// For layers that ask for their rows.
  void number_rows(Stack& model);
  RowCut rows_at(bool own) const;  ///< rows of the group, or this rank's part of them
  /// How many of them each rank has, where rows are cut.
  std::vector<std::int64_t> rows_of_ranks(const Sequences& whole) const;

  Communicator& tp_;
  bool sequence_parallel_, cuts_head_;
  RowCut group_rows_;
  std::vector<std::unique_ptr<RankReduction>> reductions_;  // that the model calls
};

/// The rows of each sequence that rank `rank` has when all rows, one sequence after another, are cut into
/// even_sizes().
Sequences even_part_of_rows(const Sequences& rows, std::int64_t ranks, std::int64_t rank);

}  // namespace nemocube
