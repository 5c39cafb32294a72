#include "train/cost/run_costs.h"

#include <algorithm>
#include <numeric>

#include "model/flops.h"
#include "ops/router/router.h"
#include "parallel/schedule/simulate.h"
#include "train/cost/nccl_memory.h"

namespace nemocube {
namespace {

std::int64_t common(const std::vector<Range>& ranges, const Range& part) {
  std::int64_t sum = 0;
  for (const Range& r : ranges)
    sum += std::max<std::int64_t>(0, std::min(r.end, part.end) - std::max(r.begin, part.begin));
  return sum;
}

/// Floating-point operations of each stage for a token.
std::vector<double> stage_flops(const ModelSetup& setup, const ParallelPlan& plan, double length) {
  const ModelConfig& config = setup.config;
  std::vector<double> all;
  for (const ModelChunk& chunk : plan.pipeline.stages) {
    ModelSetup part = setup;
    const auto at = [&](std::int64_t block) {
      return config.blocks.begin() + static_cast<std::ptrdiff_t>(std::min(block, config.num_layers()));
    };
    part.config.blocks.assign(at(chunk.first_block), at(chunk.end_block));
    part.config.own_configs.clear();
    for (const auto& [block, own] : config.own_configs)
      if (chunk.has_block(block)) part.config.own_configs.emplace(block - chunk.first_block, own);
    if (!chunk.head) part.choices.mtp = {};
    const ForwardFlops flops = forward_flops_per_token(part, length);
    all.push_back(flops.total() - (chunk.head ? 0 : flops.head));
  }
  return all;
}

double mean_idle(const Simulation& simulation) {
  return std::accumulate(simulation.idle.begin(), simulation.idle.end(), 0.0) /
         static_cast<double>(simulation.idle.size());
}

/// See train_step().
void add_step_sums(RankTraffic& traffic, const ModelSetup& setup, std::int64_t tensors) {
  const std::int64_t layers = setup.expert_layers(), losses = std::ssize(router_losses);
  // Labels, microbatches, those without a capacity, noised tokens.
  traffic.all_reduce(Group::dp, 4, DType::i64);
  traffic.all_reduce(Group::world, 1 + (layers + 1) * losses + setup.choices.mtp.depths,
                     DType::f64);  // StepTensors::sums
  if (layers > 0) traffic.all_reduce(Group::world, layers * setup.most_experts(), DType::i64);  // and counts
  traffic.all_gather(Group::world, 3, DType::f64);        // the gradient's square sum
  traffic.all_reduce(Group::world, tensors, DType::f64);  // which tensors are finite
}

}  // namespace

RunCosts::RunCosts(const ModelSetup& setup, const ParallelPlan& plan, const StepLoad& load,
                   const OptimizerOptions& optimizer)
    : setup_(setup),
      load_(load),
      state_{plan, optimizer, load.microbatches},
      passes_(setup, plan, load),
      tensors_(std::ssize(tensor_specs(setup))) {
  const Simulation simulation = simulate(plan.pipeline.schedule(plan.grid.pp, load.microbatches));
  for (std::int64_t rank = 0; rank < plan.grid.pp; ++rank)
    activations_.push_back(
        activation_memory(setup, load.dtype,
                          {load.microbatch.tokens(), load.checkpointing,
                           load.loss_rows > 0 ? load.loss_rows : load.microbatch.tokens(),
                           simulation.live[static_cast<std::size_t>(rank)], load.microbatch.count()},
                          plan, rank));
}

const LocalParameters& RunCosts::local(int rank) {
  return passes_.parts().of(place_of(state_.parallel.grid, rank));
}

std::int64_t RunCosts::counted_parameters(int rank) {
  const ZeroLevel level = state_.parallel.data.level;
  const auto position = [&](Group group) { return groups().seat(group, rank).position; };
  const LocalParameters& parameters = local(rank);
  std::int64_t counted = position(Group::dp_cp) == 0 ? parameters.counted_buffers : 0;
  parameters.for_each_unit([&](const LocalUnit& unit) {
    for (const LocalFlat& flat : unit.flats) {
      const std::int64_t seat = position(flat.shard_group(level));
      if (level == ZeroLevel::none ? seat > 0 : !flat.expert && position(Group::dp_replicate) > 0) continue;
      const Range own = flat.own(level, seat);
      for (const LocalFlat::Piece& piece : flat.pieces)
        counted += common(piece.counted, {own.begin - piece.start, own.end - piece.start});
    }
  });
  return counted;
}

std::vector<MemoryItem> RunCosts::memory(int rank) {
  const GridPlace place = place_of(state_.parallel.grid, rank);
  std::vector<MemoryItem> items = state_memory(local(rank), groups(), rank, state_);
  items.push_back({"activations about", activations_[static_cast<std::size_t>(place.pp)]});
  return items;
}

std::int64_t RunCosts::snapshot_bytes(int rank) {
  return nemocube::snapshot_bytes(local(rank), groups(), rank, state_);
}

std::int64_t RunCosts::nccl_bytes(int rank) {
  return nemocube::nccl_bytes(groups(), state_.parallel.grid.ranks(), rank, traffic(rank));
}

RankTraffic::Sums RunCosts::traffic(int rank) {
  RankTraffic traffic = passes_.of(rank);
  add_step_sums(traffic, setup_, tensors_);
  return traffic.sums();
}

Bubble RunCosts::bubble() const {
  const ParallelPlan& plan = state_.parallel;
  const Schedule schedule = plan.pipeline.schedule(plan.grid.pp, load_.microbatches);
  const auto length = static_cast<double>(load_.microbatch.longest());
  const ActionCosts own{.stages = stage_flops(setup_, plan, length)};
  return {mean_idle(simulate(schedule)), mean_idle(simulate(schedule, own))};
}

}  // namespace nemocube
