#include "train/recipe/distributed_rules.h"

#include <filesystem>

#include "core/error.h"
#include "core/quote.h"
#include "train/recipe/environment.h"
#include "train/recipe/files.h"

namespace nemocube::recipe {
namespace {

/// The section of the pipeline, by the name that the recipe uses for it.
std::string pipeline_key(const Reading& reading) {
  return reading.given("autopipeline") ? "autopipeline" : "distributed.pipeline";
}

void pipeline_rules(const PipelineSection& s, const DistributedSection& grid, Reading& reading) {
  const std::string section = pipeline_key(reading);
  const std::string schedule = section + ".pp_schedule", parts = section + ".module_fqns_per_model_part";
  if (!reading.any_faulty({schedule}))
    reading.attempt(schedule, [&] {
      try {
        parse_schedule_kind(s.pp_schedule);
      } catch (const Error& error) {
        fail(reading.where(schedule), ": ", error.what());
      }
    });
  const auto count = std::ssize(s.module_fqns_per_model_part);
  reading.rule(count % grid.pp_size == 0, {parts, "distributed.pp_size"}, "has ", count,
               " parts; want a multiple of distributed.pp_size = ", grid.pp_size);
  reading.rule(count == 0 || !s.layers_per_stage, {section + ".layers_per_stage", parts},
               "is given as well as module_fqns_per_model_part; want one of them");
  reading.rule(count == 0 || !s.block_weights, {section + ".block_weights", parts},
               "is given as well as module_fqns_per_model_part; want one of them");
}

}  // namespace

void distributed_rules(DistributedSection& s, Reading& reading) {
  const char *replicas = "distributed.dp_replicate_size", *strategy = "distributed.strategy";
  reading.rule(s.strategy == Strategy::fsdp2 || s.dp_replicate_size.value_or(1) == 1, {replicas, strategy},
               "is ", s.dp_replicate_size.value_or(1), ", but only fsdp2 has replicas of sharded groups; ",
               strategy, " is ", name_of_choice(s.strategy), "; want 1 (or absent)");
  reading.rule(s.overlap_grad_reduce == s.overlap_param_gather,
               {"distributed.overlap_param_gather", "distributed.overlap_grad_reduce"}, "is ",
               s.overlap_param_gather ? "true" : "false",
               ", but overlap_grad_reduce is not; this version overlaps both or neither");
  if (s.sequence_parallel && s.tp_size == 1) {
    const char* key = "distributed.sequence_parallel";
    reading.warnings.push_back(cat(reading.where(key), ": is off, because tp_size is 1"));
    s.sequence_parallel = false;
  }
  if (s.pp_size > 1 && !s.pipeline) s.pipeline.emplace();
  if (s.pipeline && s.pp_size == 1) {
    reading.warnings.push_back(
        cat(reading.where(pipeline_key(reading)), ": is ignored, because distributed.pp_size is 1"));
    s.pipeline.reset();
  }
  if (s.pipeline) pipeline_rules(*s.pipeline, s, reading);
}

void dist_env_rules(const DistEnvSection& s, Reading& reading) {
  for (const NamedVariable& variable : named_variables) {
    const auto& value = s.*variable.member;
    if (!value || !variable.is_switch) continue;
    reading.rule(parse_switch(value->text).has_value(), {cat("dist_env.", variable.key)}, "want ",
                 switch_words, ", found ", quote(value->text));
  }
  for (const auto& [name, value] : s.runtime_env)
    reading.rule(is_variable_name(name), {cat("dist_env.runtime_env.", name)},
                 "is no name of a variable; want letters, digits and '_'");
}

void want_pipeline(const DistributedSection& s, Reading& reading) {
  if (!s.pipeline || !s.pipeline->pp_schedule_csv) return;
  const std::string& file = *s.pipeline->pp_schedule_csv;
  reading.rule(std::filesystem::is_regular_file(file), {pipeline_key(reading) + ".pp_schedule_csv"},
               std::filesystem::exists(file) ? quote(file) + " is no file" : does_not_exist(file),
               "; want a file with the actions of each rank");
}

}  // namespace nemocube::recipe
