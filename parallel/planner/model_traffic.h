#pragma once
#include <optional>
#include <vector>

#include "model/block_passes.h"
#include "model/blocks/block_type.h"
#include "parallel/parallel_model/parallel_plan.h"
#include "parallel/planner/rank_traffic.h"
#include "parallel/planner/step_load.h"
#include "parallel/schedule/transfers.h"
#include "parallel/tensor_parallel/cuts.h"

namespace nemocube {

/// The traffic of the forward and backward passes of a step: tensor, sequence and context parallelism,
/// experts, the loss, and the exchanges between stages.
///
/// Exact where all microbatches are alike, every parameter is trained, and each rank's tokens are spread
/// evenly over the experts, with the remainder on the first experts (RouterOptions::balanced). With other
/// routings only the traffic of experts differs.
class ModelTraffic {
 public:
  ModelTraffic(const ModelSetup& setup, const ParallelPlan& plan, const StepLoad& load);

  /// Rows of the microbatch: of a context-parallel rank; of the residual stream; that a rank routes to
  /// experts.
  std::int64_t rows(std::int64_t cp) const { return rows_of_cp_[static_cast<std::size_t>(cp)]; }
  std::int64_t residual_rows(const GridPlace& place) const;
  std::int64_t routed_rows(std::int64_t tp, std::int64_t cp) const;

  /// `program`: the actions and exchanges of the pipeline rank in the step.
  void add(RankTraffic& traffic, const GridPlace& place, const Program& program) const;

 private:
  struct Block {
    BlockCores cores;
    bool all_rows;  ///< enter the block (BlockType::entry)
    bool cut;       ///< over tp
    /// Whether rows enter, or leave, together with rows of other blocks on the same norm (SharedWays): the
    /// common message counts with the first block, or with the last.
    bool enters_with_others = false, leaves_with_others = false, first = true, last = true;
  };
  /// How often one kind of pass happens in a step.
  struct Times {
    std::int64_t forward, backward;
  };

  /// `sum_backward`: whether the outputs summed so far have a backward pass.
  void add_block(RankTraffic& traffic, const GridPlace& place, const Block& block, const BlockPass& pass,
                 bool sum_backward = false) const;
  void add_mtp(RankTraffic& traffic, const GridPlace& place, const ModelChunk& chunk) const;
  void add_way_in(RankTraffic& traffic, const GridPlace& place, bool cut, Times times) const;
  /// `width`: of the rows that leave.
  void add_way_out(RankTraffic& traffic, const GridPlace& place, bool cut, Times times,
                   std::int64_t width) const;
  void add_way_out(RankTraffic& traffic, const GridPlace& place, bool cut, Times times) const {
    add_way_out(traffic, place, cut, times, setup_.config.hidden_size);
  }
  void add_attention(RankTraffic& traffic, const GridPlace& place, const BlockCores::Attention& attention,
                     bool cut, Times times) const;
  void add_scan(RankTraffic& traffic, const GridPlace& place, const BlockCores::Scan& scan, bool cut,
                Times times) const;
  using Experts = BlockCores::Experts;
  void add_experts(RankTraffic& traffic, const GridPlace& place, const Block& block, Times times) const;
  void add_router_losses(RankTraffic& traffic, const Experts& experts) const;
  void add_alltoall(RankTraffic& traffic, const GridPlace& place, const Experts& experts, Times times) const;
  void add_allgather(RankTraffic& traffic, const GridPlace& place, const Experts& experts, Times times) const;
  /// `unlabelled`: the last rows of each sequence that have no label.
  void add_loss(RankTraffic& traffic, const GridPlace& place, std::int64_t unlabelled) const;
  void add_exchanges(RankTraffic& traffic, const GridPlace& place, const Program& program) const;

  std::int64_t tokens_at(const GridPlace& place, std::int64_t member) const;

  ModelSetup setup_;
  ParallelPlan plan_;
  StepLoad load_;
  std::vector<Block> blocks_, mtp_blocks_;
  bool cuts_embeddings_, cuts_head_, cuts_per_layer_embeddings_ = false;
  std::vector<std::int64_t> rows_of_cp_;
  std::optional<TensorCuts> cuts_;  // where side rows pass between stages
};

}  // namespace nemocube
