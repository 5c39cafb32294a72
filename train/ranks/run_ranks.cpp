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
      plan_(plan_ranks(section, world.size())) {}

Divide RunRanks::divide() {
  if (!several()) return {};
  const auto plan = std::make_shared<ParallelPlan>();
  return {[this, plan](const NemotronHConfig& config) {
            *plan = plan_model(section_, settings_, plan_, config);
            groups_.emplace(world_, make_grid(plan->grid), used_groups(*plan, config));
            return part_of(*plan, config, place_of(plan->grid, world_.rank()));
          },
          [this, plan](NemotronH& model) {
            parallel_ = std::make_unique<ParallelModel>(model, *plan, *groups_, device_);
          }};
}

RankLayout RunRanks::layout() const {
  if (!several()) return {};
  expect(parallel_ != nullptr, "the layout of ranks that have no model yet");
  return {plan_.grid, plan_.options.level, describe_stages(parallel_->plan().pipeline)};
}

void RunRanks::check_pipeline_fill(std::int64_t microbatches) const {
  if (!parallel_) return;
  const std::string warning = underfill_warning(microbatches, std::ssize(parallel_->plan().pipeline.stages),
                                                settings_.refuse_underfill);
  if (!warning.empty() && first()) log_warning(warning);
}

std::string RunRanks::text(const KernelChoice& kernels) const {
  const dnnl_version_t* dnn = dnnl_version();
  std::string variants;
  for (const auto& [op, variant] : kernels.by_op)
    variants += cat(variants.empty() ? "" : ", ", op, "=", variant);
  return cat(plan_.text, "; ", counted(world_.nodes(), "node"), ", ",
             counted(omp_get_max_threads(), "thread"), " a rank; oneDNN ", dnn->major, ".", dnn->minor, ".",
             dnn->patch, ", ", world_.library(), "; kernels: ", variants.empty() ? "default" : variants);
}

std::vector<CommStats> RunRanks::stats() const {
  std::vector<CommStats> all;
  if (!several()) return all;
  const auto add = [&](const Communicator& group) {
    for (std::size_t i = 0; i < operation_count; ++i) all.push_back(group.stats(static_cast<Operation>(i)));
  };
  add(world_.communicator());
  if (!groups_) return all;
  for (const std::string& name : groups_->names()) add((*groups_)[name]);
  return all;
}

std::int64_t RunRanks::largest(std::int64_t value) const { return nemocube::largest(group(), value); }

void RunRanks::sum(std::span<std::int64_t> values) const {
  if (!several()) return;
  group()->host_all_reduce(values);
}

double RunRanks::sum(double value) const { return several() ? group()->host_all_reduce(value) : value; }

}  // namespace nemocube
