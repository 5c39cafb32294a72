#include "train/ranks/run_ranks.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "core/log.h"
#include "parallel/comm/together.h"
#include "train/ranks/plan_model.h"

namespace nemocube {

RunRanks::RunRanks(World& world, const DistributedSection& section, const ParallelSettings& settings,
                   Device device)
    : world_(world),
      section_(section),
      settings_(settings),
      device_(device),
      sizes_(rank_sizes(section, world.size())) {}

Residence RunRanks::place_for(const ModelSetup& setup) const {
  return {device_, world_, plan_model(section_, settings_, sizes_, setup)};
}

void RunRanks::tell_tensor_plan(const ModelSetup& setup) const {
  for (const std::string& line : tensor_plan_lines(section_, settings_, setup)) log_info(line);
}

RankLayout RunRanks::layout(const ParallelModel& model) const {
  if (!several()) return {};
  return {sizes_.grid, sizes_.options.level, describe_stages(model.plan().pipeline)};
}

void RunRanks::check_pipeline_fill(const ParallelModel& model, std::int64_t microbatches) const {
  const std::string warning =
      underfill_warning(microbatches, std::ssize(model.plan().pipeline.stages), settings_.refuse_underfill);
  if (!warning.empty() && first()) log_warning(warning);
}

std::string RunRanks::text(const KernelChoice& kernels) const {
  const dnnl_version_t* dnn = dnnl_version();
  std::string variants;
  for (const auto& [op, variant] : kernels.by_op)
    variants += cat(variants.empty() ? "" : ", ", op, "=", variant);
  return cat(sizes_.text, "; ", counted(world_.nodes(), "node"), ", ",
             counted(omp_get_max_threads(), "thread"), " a rank; oneDNN ", dnn->major, ".", dnn->minor, ".",
             dnn->patch, ", ", world_.library(), "; kernels: ", variants.empty() ? "default" : variants);
}

std::vector<CommStats> RunRanks::stats(const ProcessGroups& groups) const {
  std::vector<CommStats> all;
  if (!several()) return all;
  world_.wait_for_collectives();
  const auto add = [&](const Communicator& group) {
    for (std::size_t i = 0; i < operation_count; ++i) all.push_back(group.stats(static_cast<Operation>(i)));
  };
  add(world_.communicator());
  for (const Group group : groups.present()) add(groups[group]);
  return all;
}

CommStats RunRanks::total_stats(const ProcessGroups& groups) const {
  CommStats sum;
  for (const CommStats& s : stats(groups)) {
    sum.calls += s.calls;
    sum.bytes_sent += s.bytes_sent;
    sum.seconds += s.seconds;
    sum.waiting_seconds += s.waiting_seconds;
  }
  return sum;
}

std::int64_t RunRanks::largest(std::int64_t value) const { return nemocube::largest(world_group(), value); }

double RunRanks::sum(double value) const { return several() ? world_group()->host_all_reduce(value) : value; }

}  // namespace nemocube
