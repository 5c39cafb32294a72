#include "train/ranks/plan_model.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "core/log.h"
#include "core/quote.h"
#include "data/hf/families/family.h"
#include "data/hf/language_part.h"
#include "data/hf/module_names.h"
#include "parallel/context_parallel/dealt_heads.h"
#include "parallel/schedule/check.h"
#include "parallel/schedule/csv.h"
#include "parallel/schedule/stages.h"
#include "parallel/tensor_parallel/cuts.h"

namespace nemocube {
namespace {

const char* round_of(const PipelineSection& section) {
  if (!section.round_virtual_stages_to_pp_multiple) return "";
  return *section.round_virtual_stages_to_pp_multiple == Round::up ? "up" : "down";
}

Schedule read_schedule(const std::string& file, std::int64_t pp) {
  std::ifstream in(file, std::ios::binary);
  require(in.good(), "distributed.pipeline.pp_schedule_csv: ", file, " cannot be read");
  std::ostringstream text;
  text << in.rdbuf();
  Schedule schedule = parse_schedule_csv(text.str(), file);
  require(std::ssize(schedule) == pp, file, ": the schedule is for ", schedule.size(),
          " ranks, but distributed.pp_size is ", pp);
  check_schedule(schedule);
  return schedule;
}

PipelinePlan plan_pipeline(const PipelineSection& section, const ParallelSettings& settings,
                           const ModelConfig& config, std::int64_t pp) {
  PipelinePlan plan;
  plan.kind = parse_schedule_kind(section.pp_schedule);
  if (section.pp_schedule_csv) {
    plan.custom = read_schedule(*section.pp_schedule_csv, pp);
    plan.rank_of_stage = ranks_of_stages(*plan.custom);
  }
  if (!section.module_fqns_per_model_part.empty()) {
    ManualStages manual =
        manual_stages(section.module_fqns_per_model_part, config.num_layers(), stage_modules(config));
    plan.stages = std::move(manual.stages);
    for (const std::string& name : std::set(manual.skipped.begin(), manual.skipped.end()))
      log_info("distributed.pipeline.module_fqns_per_model_part: ", name,
               " has no parameters and is skipped");
  } else {
    const char* const unit = config.names.layered() ? "layer" : "block";
    const std::int64_t layers = config.names.layers(config.num_layers()),
                       count = plan.custom ? std::ssize(plan.rank_of_stage)
                                           : count_stages(plan.kind, pp, layers, section.layers_per_stage,
                                                          round_of(section), unit);
    if (settings.block_weights) {
      plan.stages = weighted_stages(config.blocks, count, *settings.block_weights);
    } else {
      plan.stages = even_stages(layers, count, unit);
      for (ModelChunk& stage : plan.stages) {
        stage.first_block = config.names.first_block(stage.first_block);
        stage.end_block = config.names.first_block(stage.end_block);
      }
    }
  }
  for (const ModelChunk& stage : plan.stages)
    require(stage.first_block >= config.num_layers() ||
                config.block(stage.first_block).residual != Residual::shared_norm,
            "distributed.pipeline: a stage begins with block ", stage.first_block,
            ", which shares the norm of the block before it; want both in one stage "
            "(module_fqns_per_model_part)");
  const std::int64_t count = std::ssize(plan.stages);
  if (plan.custom) {
    require(std::ssize(plan.rank_of_stage) == count, *section.pp_schedule_csv, ": the schedule has ",
            plan.rank_of_stage.size(), " stages, but distributed.pipeline.module_fqns_per_model_part has ",
            count);
    return plan;
  }
  plan.rank_of_stage.resize(static_cast<std::size_t>(count));
  for (std::int64_t rank = 0; rank < pp; ++rank)
    for (const std::int64_t stage : stages_of_rank(placement_of(plan.kind), rank, pp, count))
      plan.rank_of_stage[static_cast<std::size_t>(stage)] = rank;
  check_chunks(plan.kind, count / pp);
  return plan;
}

std::string own_plan(const ModelConfig& config) {
  const Family& family = family_of(config);
  return std::string(family.tp_plans.empty() ? family.model_type : family.tp_plans[0]);
}

std::vector<TensorParallelRule> tensor_rules(const DistributedSection& section,
                                             const ParallelSettings& settings, const ModelConfig& config) {
  const Family& family = family_of(config);
  const std::string& name = section.tp_plan.name;
  require(name.empty() || std::ranges::count(family.tp_plans, name) > 0, "distributed.tp_plan: ", name,
          " is the plan of another family; want ", own_plan(config), ", as the model's model_type is ",
          family.model_type);
  std::vector<TensorParallelRule> rules;
  for (const auto& [pattern, style] : section.tp_plan.rules)
    rules.push_back({without_language_prefix(pattern), style});
  if (settings.tp_cross_entropy == TpCrossEntropy::off)
    rules.push_back({config.text(config.head_module()), "replicated"});
  return rules;
}

}  // namespace

ParallelPlan plan_model(const DistributedSection& section, const ParallelSettings& settings,
                        const RankSizes& ranks, const ModelSetup& setup) {
  ParallelPlan plan;
  plan.grid = ranks.grid;
  plan.sequence_parallel = section.sequence_parallel;
  plan.tensor_rules = tensor_rules(section, settings, setup.config);
  plan.dispatcher = settings.dispatcher;
  plan.context_attention = section.cp_comm_type;
  plan.data = ranks.options;
  plan.data.reshard_experts_after_forward =
      settings.expert_reshard_after_forward.value_or(plan.data.reshard_after_forward);
  const TensorParallelPlan tensor(setup, plan.sequence_parallel, plan.tensor_rules);
  const TensorName head = setup.config.head_module();
  require(plan.grid.tp == 1 || settings.tp_cross_entropy != TpCrossEntropy::off ||
              tensor.style(head) == TensorStyle::replicated,
          "distributed.tp_cross_entropy is off, so each rank has the whole head; distributed.tp_plan says ",
          name_of(tensor.style(head)), " for '", setup.config.text(head),
          "'; want replicated there, or another tp_cross_entropy");
  const HeadReplicas replicas = head_replicas(setup, tensor, plan.grid.tp);
  plan.grid.kv_replicas = replicas.kv;
  plan.grid.state_replicas = replicas.state;
  (void)TensorCuts(setup, tensor, plan.grid);  // throws where sizes do not divide
  check_context_parallel(setup, plan.grid.tp, plan.grid.cp);
  if (plan.grid.pp > 1)
    plan.pipeline = plan_pipeline(*section.pipeline, settings, setup.config, plan.grid.pp);
  return plan;
}

std::vector<std::string> tensor_plan_lines(const DistributedSection& section,
                                           const ParallelSettings& settings, const ModelSetup& setup) {
  if (section.tp_size == 1) return {};
  const TensorPlanSection& given = section.tp_plan;
  const std::string own = own_plan(setup.config);
  std::string source = given.name.empty() ? cat(own, ", the family's own") : cat(given.name, ", by name");
  if (!given.rules.empty())
    source = cat(counted(std::ssize(given.rules), "pattern"), " of ",
                 given.file.empty() ? "distributed.tp_plan" : excerpt(given.file), ", then ", own);
  std::vector<std::string> lines{cat(
      "tensor-parallel plan: ", source,
      " (the first that there is: a section, a name or a file in distributed.tp_plan, the family's own)")};
  const TensorParallelPlan plan(setup, section.sequence_parallel,
                                tensor_rules(section, settings, setup.config));
  std::ranges::copy(plan.notes(), std::back_inserter(lines));
  return lines;
}

}  // namespace nemocube
