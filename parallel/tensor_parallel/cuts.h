#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "core/shard.h"
#include "parallel/comm/group.h"
#include "parallel/grid/grid_sizes.h"
#include "parallel/tensor_parallel/plan.h"

/// Where the plan of tensor parallelism cuts each tensor of a model, and what follows for gradients and
/// norms. With t tp ranks, x expt_tp ranks and e ep ranks, the rank with tp coordinate r holds
///
///     embeddings, lm_head     tokens [r c, (r + 1) c) of V, with c = ceil(V / t): the last part is shorter,
///                             a part may be empty. Nothing is padded, so neither files nor the loss know t
///     q_proj, o_proj          query heads r n_q / t ...
///     k_proj, v_proj          key-value heads r n_kv / t ..., or, with n_kv < t, the head r div (t / n_kv),
///                             which t / n_kv neighbours hold as well (kv replicas)
///     q_norm, k_norm          whole: each rank has the part of the gradient that its heads give
///     in_proj                 the r-th part of the rows of z, x and dt, and of B and C by groups like
///                             key-value heads; with G < t groups, t / G neighbours hold the same one (state
///                             replicas)
///     conv1d                  the same channels x, B and C
///     A_log, D, dt_bias, gated norm, out_proj, up_proj, down_proj          the r-th part
///     experts                 experts of the ep coordinate, of each the inner channels of the expt_tp
///                             coordinate
///
/// Of an adapter W + s B A, B is cut as the rows of W are, and A as its columns are. Where W is cut, the
/// factor that is whole has a part of its gradient on each rank.
///
/// Heads are contiguous in all these tensors, so head h keeps its key-value head or group on the rank.
namespace nemocube {

/// One rank's part of one tensor. Ranges are of local elements, row-major, ascending, with gaps between.
struct TensorCut {
  Shard shard;
  /// The group over which a gradient has to be summed, besides groups of data and context parallelism: each
  /// of its ranks has a part of the gradient of the elements `summed`, which are the same on all of them.
  std::optional<Group> sum;
  std::vector<Range> summed;
  /// The elements that norms and checkpoints take from this rank, as the first rank that holds them. Copies
  /// that data and context parallelism make do not count here.
  std::vector<Range> counted;
  bool expert = false;  ///< copies lie in the group expt_dp instead of dp_cp
};

/// How many neighbouring tp ranks hold the same key-value heads, and the same groups of B and C (GridSizes).
struct HeadReplicas {
  std::int64_t kv = 1, state = 1;
};
HeadReplicas head_replicas(const ModelSetup& setup, const TensorParallelPlan& plan, std::int64_t tp);

class TensorCuts {
 public:
  /// Throws Error for sizes of the model that do not divide: the message lists the grid sizes that do.
  TensorCuts(const ModelSetup& setup, TensorParallelPlan plan, const GridSizes& sizes);
  TensorCut operator()(const TensorSpec& spec, const GridPlace& place) const;
  const TensorParallelPlan& plan() const { return plan_; }

 private:
  TensorCut factor(const TensorSpec& spec, const GridPlace& place) const;
  /// CutRule::segments of a tensor with so many rows.
  std::vector<RowSegment> segments(const TensorSpec& spec, std::int64_t rows) const;
  TensorCut by_columns(const TensorSpec& spec, std::int64_t tp_rank) const;
  /// width_dim: the dimension that is cut over expt_tp; -1: none, and the ranks' gradients are partial.
  TensorCut expert(const TensorSpec& spec, int width_dim, const GridPlace& place) const;
  TensorCut whole(const TensorSpec& spec, std::int64_t tp_rank, bool partial) const;

  ModelConfig config_;
  TensorParallelPlan plan_;
  GridSizes sizes_;
};

/// The tokens of rank `rank` of `ranks`.
Range vocabulary_range(std::int64_t vocabulary, std::int64_t ranks, std::int64_t rank);

}  // namespace nemocube
