#include "parallel/planner/data_traffic.h"

#include <algorithm>
#include <set>

#include "model/block_passes.h"

namespace nemocube {
namespace {

/// Which weights of the blocks are there while a rank works, as DataParallel decides it.
class GatheredBlocks {
 public:
  GatheredBlocks(const LocalParameters& parameters, const DataParallelOptions& options) : options_(options) {
    for (const auto& [block, unit] : parameters.blocks)
      states_[block].has_experts = std::ranges::any_of(unit.flats, &LocalFlat::expert);
  }

  void forward(std::int64_t block) {
    gather(block);
    const auto here = states_.find(block), next = std::next(here);
    if (options_.overlap && next != states_.end()) gather(next->first);
    if (next == states_.end()) return;  // backward begins with the last block
    release(block, options_.reshard_after_forward, options_.reshard_experts_after_forward);
  }

  void backward(std::int64_t block, bool reduces) {
    gather(block);
    const auto here = states_.find(block);
    if (options_.overlap && here != states_.begin()) gather(std::prev(here)->first);
    if (reduces) release(block, true, true);
  }

  void gradients_written(std::int64_t block) { ++moves_[block].reductions; }

  const UnitMoves& moves() const { return moves_; }

 private:
  struct State {
    bool has_experts = false, dense_here = false, experts_here = false;
  };

  void gather(std::int64_t block) {
    State& s = states_.at(block);
    BlockMoves& moves = moves_[block];
    if (!std::exchange(s.dense_here, true)) ++moves.gathers;
    if (s.has_experts && !std::exchange(s.experts_here, true)) ++moves.expert_gathers;
  }

  void release(std::int64_t block, bool dense, bool experts) {
    State& s = states_.at(block);
    if (dense) s.dense_here = false;
    if (experts) s.experts_here = false;
  }

  DataParallelOptions options_;
  std::map<std::int64_t, State> states_;
  UnitMoves moves_;
};

void add_reduction(RankTraffic& traffic, const LocalUnit& unit, ZeroLevel level, std::int64_t times) {
  for (const auto& [group, elements] : unit.partial)
    traffic.all_reduce(group, elements, accumulate_dtype(unit.flats.front().dtype), times);
  for (const LocalFlat& flat : unit.flats) {
    if (!flat.trained) continue;
    const DType dtype = accumulate_dtype(flat.dtype);
    const Group group = flat.shard_group(level);
    if (level == ZeroLevel::none) {
      traffic.all_reduce(group, flat.size, dtype, times);
      continue;
    }
    traffic.reduce_scatter(group, flat.shard, flat.size, dtype, times);
    if (!flat.expert) traffic.all_reduce(Group::dp_replicate, flat.shard, dtype, times);
  }
}

}  // namespace

UnitMoves count_moves(const ModelSetup& setup, const LocalParameters& parameters, const Program& program,
                      const ParallelPlan& plan) {
  GatheredBlocks blocks(parameters, plan.data);
  const std::vector<bool> last = last_backward_passes(program);
  for (std::size_t i = 0; i < program.size(); ++i) {
    const auto* action = std::get_if<Action>(&program[i]);
    if (!action) continue;
    const ModelChunk& stage = plan.pipeline.stages[static_cast<std::size_t>(action->stage)];
    std::vector<std::int64_t> own;
    for (const auto& [block, unit] : parameters.blocks)
      if (stage.has_block(block)) own.push_back(block);
    if (action->kind == Action::Kind::forward) {
      for (const std::int64_t block : own) blocks.forward(block);
      continue;
    }
    const bool reduces = last[i] || !plan.data.reduce_last_only;
    const std::vector<BlockPass> passes = block_passes(setup, stage);
    std::erase_if(own, [&](std::int64_t block) {
      return !passes[static_cast<std::size_t>(block - stage.first_block)].backward;
    });
    std::ranges::reverse(own);
    for (const std::int64_t block : own) {
      if (action->kind != Action::Kind::backward_weight) blocks.backward(block, reduces);
      if (action->kind != Action::Kind::backward_input && reduces) blocks.gradients_written(block);
    }
  }
  return blocks.moves();
}

void add_data_traffic(RankTraffic& traffic, const LocalParameters& parameters, const UnitMoves& moves,
                      const DataParallelOptions& options) {
  const ZeroLevel level = options.level;
  const auto gather = [&](const LocalFlat& flat, std::int64_t times) {
    traffic.all_gather(flat.shard_group(level), flat.shard, flat.dtype, times);
  };
  const auto add_unit = [&](const LocalUnit& unit, const BlockMoves& m) {
    for (const LocalFlat& flat : unit.flats) {
      if (level == ZeroLevel::parameters) gather(flat, flat.expert ? m.expert_gathers : m.gathers);
      if ((level == ZeroLevel::optimizer || level == ZeroLevel::gradients) && flat.trained) gather(flat, 1);
    }
    add_reduction(traffic, unit, level, m.reductions);
  };
  add_unit(parameters.root, {1, 1, 1});
  for (const auto& [block, unit] : parameters.blocks) add_unit(unit, moves.at(block));
}

}  // namespace nemocube
