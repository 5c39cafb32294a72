#include <doctest/doctest.h>

#include "data/json/test_dir.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"
#include "train/recipe/recipe.h"

using namespace nemocube;
using nemocube::testing::message_of;
using nemocube::testing::source_path;
using nemocube::testing::spit;
using nemocube::testing::TestDir;

namespace {

const std::string model_folder = source_path("tests/goldens/train20");

/// A recipe that trains, with more lines added.
std::string with(const std::string& more) {
  return cat("step_scheduler: {global_batch_size: 8, local_batch_size: 4, max_steps: 5}\n",
             "model: {pretrained_model_name_or_path: ", model_folder, "}\n",
             "dataset: {_target_: tokens, path: ", model_folder, "/tokens.safetensors}\n",
             "optimizer: {lr: 1e-3}\n", more);
}

Recipe parse(const std::string& more, RecipeUse use = RecipeUse::train) {
  return parse_recipe(with(more), "r.yaml", {}, use);
}

std::string error_of(const std::string& more, const std::vector<std::string>& overrides = {},
                     RecipeUse use = RecipeUse::train) {
  return message_of([&] { parse_recipe(with(more), "r.yaml", overrides, use); });
}

}  // namespace

TEST_CASE("sizes and choices of parallelism: defaults and values") {
  const DistributedSection none = parse("").distributed;
  CHECK(none.expert_tp_size == 1);
  CHECK_FALSE(none.sequence_parallel);
  CHECK(none.tp_plan == TensorPlanSection{});
  CHECK(none.tp_cross_entropy == TpCrossEntropy::automatic);
  CHECK(none.cp_comm_type == ContextAttention::ring);
  CHECK_FALSE(none.pipeline);
  CHECK_FALSE(none.moe.reshard_after_forward);

  const DistributedSection s =
      parse(
          "distributed: {tp_size: 2, cp_size: 4, ep_size: 2, expert_tp_size: 2, sequence_parallel: true, "
          "cp_comm_type: all_gather, moe: {reshard_after_forward: false}}")
          .distributed;
  CHECK(s.tp_size == 2);
  CHECK(s.cp_size == 4);
  CHECK(s.ep_size == 2);
  CHECK(s.expert_tp_size == 2);
  CHECK(s.sequence_parallel);
  CHECK(s.cp_comm_type == ContextAttention::all_gather);
  CHECK(s.moe.reshard_after_forward == false);

  const auto loss = [](const std::string& word) {
    return parse(cat("distributed: {tp_cross_entropy: ", word, "}")).distributed.tp_cross_entropy;
  };
  CHECK(loss("native") == TpCrossEntropy::native);
  CHECK(loss("fused") == TpCrossEntropy::fused);
  CHECK(loss("te") == TpCrossEntropy::fused);
  CHECK(loss("off") == TpCrossEntropy::off);
  CHECK(loss("'off'") == TpCrossEntropy::off);
  CHECK(loss("auto") == TpCrossEntropy::automatic);
  CHECK(error_of("distributed: {tp_cross_entropy: fast}") ==
        "r.yaml:5: distributed.tp_cross_entropy: want one of auto, native, fused, te, off, false, found "
        "'fast'");
  CHECK(error_of("distributed: {cp_comm_type: a2a}") ==
        "r.yaml:5: distributed.cp_comm_type: want one of p2p, all_gather, found 'a2a'");
  CHECK(error_of("distributed: {ep_size: 4000000000}") ==
        "r.yaml:5: distributed.ep_size: want an integer from 1 to 1048576, found '4000000000'");
}

TEST_CASE("sequence parallelism of one rank is off, with a warning") {
  const Recipe r = parse("distributed: {sequence_parallel: true}");
  CHECK_FALSE(r.distributed.sequence_parallel);
  CHECK(r.warnings ==
        std::vector<std::string>{"r.yaml:5: distributed.sequence_parallel: is off, because tp_size is 1"});
  CHECK(parse("distributed: {sequence_parallel: true, tp_size: 2}").warnings.empty());
}

TEST_CASE("a tensor-parallel plan keeps the order of its patterns") {
  const TensorPlanSection plan =
      parse("distributed: {tp_plan: {lm_head: colwise_rep, '*.up_proj': colwise, a: rowwise}}")
          .distributed.tp_plan;
  CHECK(plan.rules == std::vector<std::pair<std::string, std::string>>{
                          {"lm_head", "colwise_rep"}, {"*.up_proj", "colwise"}, {"a", "rowwise"}});
  CHECK(plan.name.empty());
  CHECK(parse("distributed: {tp_plan: null}").distributed.tp_plan == TensorPlanSection{});
  for (const char* strategy : {"fsdp2", "megatron_fsdp", "ddp"})
    CHECK(parse(cat("distributed: {strategy: ", strategy, ", tp_shard_plan: {a: rowwise}}"))
              .distributed.tp_plan.rules.size() == 1);
  CHECK(error_of("distributed: {tp_plan: [a]}") ==
        "r.yaml:5: distributed.tp_plan: want a section; each entry is text; or the name of a plan or of a "
        "file, found a list");
  CHECK(error_of("distributed: {tp_plan: {a: [b]}}") ==
        "r.yaml:5: distributed.tp_plan.a: want text, found a list");
  CHECK(error_of("distributed: {strategy: megatron_fsdp, tp_plan: {a: colwise}, tp_shard_plan: {a: "
                 "rowwise}}") ==
        "r.yaml:5: distributed.tp_shard_plan: is {\"a\": \"rowwise\"}, but distributed.tp_plan is {\"a\": "
        "\"colwise\"}; want one of them, or equal values");
  CHECK(error_of("distributed: {tp_plan: {lm_head: colwize}}")
            .starts_with("r.yaml:5: distributed.tp_plan.lm_head: unknown word 'colwize'; the nearest known "
                         "word is 'colwise', known: replicated, colwise,"));
  CHECK(parse("distributed: {tp_plan: {a: ep_router}}").distributed.tp_plan.rules.size() == 1);
}

TEST_CASE("a tensor-parallel plan may be the name of a plan, or a file in YAML or JSON") {
  const TensorPlanSection named =
      parse("distributed: {tp_plan: llama_nemotron_super_tp_plan}").distributed.tp_plan;
  CHECK(named.name == "llama_nemotron_super_tp_plan");
  CHECK(named.rules.empty());
  CHECK(
      error_of("distributed: {tp_plan: llama_nemotron_sper_tp_plan}")
          .starts_with("r.yaml:5: distributed.tp_plan: 'llama_nemotron_sper_tp_plan' is neither a plan nor a "
                       "file; the nearest plan is 'llama_nemotron_super_tp_plan'; want a section of "
                       "patterns, one of nemotron_h_tp_plan, llama_tp_plan,"));
  const TestDir dir;
  const auto of_file = [&](const std::string& name, const std::string& text) {
    spit(dir / name, text);
    return cat("distributed: {tp_plan: '", (dir / name).string(), "'}");
  };
  using Rules = std::vector<std::pair<std::string, std::string>>;
  const Rules rules{{"layers.*.mlp.up_proj", "colwise"}, {"lm_head", "colwise_gather_output"}};
  for (const std::string& recipe :
       {of_file("plan.json",
                "{\n\t\"layers.*.mlp.up_proj\": \"colwise\",\n\t\"lm_head\": "
                "\"colwise_gather_output\"\n}\n"),
        of_file("plan.yaml", "layers.*.mlp.up_proj: colwise\nlm_head: colwise_gather_output\n")}) {
    const Recipe read = parse(recipe);
    CHECK(read.distributed.tp_plan.rules == rules);
    CHECK(read.distributed.tp_plan.file.starts_with(dir.path().string()));
    CHECK(describe(read).find("tp_plan: {\"layers.*.mlp.up_proj\": \"colwise\"") != std::string::npos);
  }
  const auto fault = [&](const std::string& text) {
    const std::string message = error_of(of_file("bad.yaml", text)),
                      start = "r.yaml:5: distributed.tp_plan: ";
    CHECK(message.starts_with(start));
    return message.substr(start.size() + (dir / "bad.yaml").string().size());
  };
  CHECK(fault("") == ": want patterns with their words, found none");
  CHECK(fault("[a]") == ": want a section of keys, found a list");
  CHECK(fault("a: {b: c}") == ".a: want text, found a section");
  CHECK(fault("a: rowise").starts_with(".a: unknown word 'rowise'; the nearest known word is 'rowwise'"));
}

TEST_CASE("pipelines: defaults, values and AutoModel's older section") {
  const PipelineSection empty = *parse("distributed: {pp_size: 2, pipeline: {}}").distributed.pipeline;
  CHECK(empty.pp_schedule == "1f1b");
  CHECK_FALSE(empty.pp_schedule_csv);
  CHECK(empty.pp_microbatch_size == 1);
  CHECK_FALSE(empty.layers_per_stage);
  CHECK(empty.module_fqns_per_model_part.empty());
  CHECK_FALSE(empty.block_weights);

  const std::string keys =
      "{_target_: x.AutoPipeline, pp_schedule: ScheduleInterleaved1F1B, pp_microbatch_size: 2, "
      "layers_per_stage: 3, "
      "round_virtual_stages_to_pp_multiple: up, block_weights: {moe: 4, head: 2}, pp_batch_size: 4, "
      "pp_seq_len: 8, "
      "scale_grads_in_schedule: false, patch_inner_model: true, dtype: bf16}";
  const auto check = [](const Recipe& r, const std::string& section) {
    const PipelineSection& s = *r.distributed.pipeline;
    CHECK(s.pp_schedule == "ScheduleInterleaved1F1B");
    CHECK(s.pp_microbatch_size == 2);
    CHECK(s.layers_per_stage == 3);
    CHECK(s.round_virtual_stages_to_pp_multiple == Round::up);
    CHECK(s.block_weights == parse_block_weights("moe=4,head=2"));
    CHECK(r.no_effect == std::vector<std::string>{section + ".pp_batch_size", section + ".pp_seq_len",
                                                  section + ".dtype", section + ".patch_inner_model"});
    CHECK(r.warnings.empty());
  };
  const Recipe today = parse(cat("distributed: {pp_size: 2, pipeline: ", keys, "}"));
  check(today, "distributed.pipeline");
  const Recipe older = parse(cat("distributed: {pp_size: 2}\nautopipeline: ", keys));
  check(older, "autopipeline");
  CHECK(describe(today) == describe(older));
  CHECK(error_of(cat("distributed: {pp_size: 2, pipeline: {}}\nautopipeline: ", keys)) ==
        "r.yaml:6: autopipeline: is another name of distributed.pipeline, which is given as well; want one "
        "of them");
  CHECK(parse(cat("distributed: {pp_size: 2, pipeline: {}}\nautopipeline: null")).distributed.pipeline);

  const PipelineSection manual =
      *parse("distributed: {pp_size: 2, pipeline: {module_fqns_per_model_part: [[a, b.0], [c]]}}")
           .distributed.pipeline;
  CHECK(manual.module_fqns_per_model_part == std::vector<std::vector<std::string>>{{"a", "b.0"}, {"c"}});
}

TEST_CASE("pipelines: what does not fit") {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"pp_schedule: fifo",
       "distributed.pipeline.pp_schedule: no pipeline schedule 'fifo'; there are: gpipe (ScheduleGPipe), "
       "1f1b"},
      {"pp_microbatch_size: 3",
       "step_scheduler.local_batch_size = 4 must be a multiple of distributed.pipeline.pp_microbatch_size = "
       "3; the "
       "nearest that is: 3"},
      {"pp_microbatch_size: 0", "pp_microbatch_size: want an integer from 1"},
      {"round_virtual_stages_to_pp_multiple: near", "want one of up, down, found 'near'"},
      {"module_fqns_per_model_part: [[a], [b], [c]]",
       "distributed.pipeline.module_fqns_per_model_part: has 3 parts; want a multiple of distributed.pp_size "
       "= 2"},
      {"module_fqns_per_model_part: [a, b]", "module_fqns_per_model_part.0: want a list of lists of text"},
      {"module_fqns_per_model_part: [[a], [b]], layers_per_stage: 2",
       "distributed.pipeline.layers_per_stage: is given as well as module_fqns_per_model_part"},
      {"module_fqns_per_model_part: [[a], [b]], block_weights: {}", "is given as well as"},
      {"block_weights: {mamba2: 1}", "the nearest known key is 'mamba'"},
      {"block_weights: {moe: -1}", "block_weights.moe: want a number from 0 to 10000"},
      {"scale_grads_in_schedule: true",
       "a schedule that divides gradients (each label of a step counts alike) is not in this build; want "
       "false, found 'true'"},
      {"pp_shedule: 1f1b", "the nearest known key is 'pp_schedule'"},
      {"pp_schedule_csv: gone.csv", "pp_schedule_csv: 'gone.csv' does not exist"}};
  for (const auto& [keys, part] : cases) {
    const std::string message = error_of(cat("distributed: {pp_size: 2, pipeline: {", keys, "}}"));
    CHECK_MESSAGE(message.find(part) != std::string::npos, keys, ": ", message);
  }
  CHECK(error_of("distributed: {pp_size: 2}", {}, RecipeUse::data) == "no error");
}

TEST_CASE("several stages without a section for them have the default pipeline") {
  const std::string meant = describe(parse("distributed: {pp_size: 2, pipeline: {}}"));
  CHECK(describe(parse("distributed: {pp_size: 2}")) == meant);
  CHECK(describe(parse("distributed: {pp_size: 2, pipeline: null}")) == meant);
  CHECK(meant.find("1f1b") != std::string::npos);
}

TEST_CASE("a pipeline of one stage is ignored, with a warning") {
  const Recipe r = parse("distributed:\n  pipeline: {pp_schedule: zbv, pp_microbatch_size: 3}");
  CHECK_FALSE(r.distributed.pipeline);
  CHECK(r.warnings == std::vector<std::string>{
                          "r.yaml:6: distributed.pipeline: is ignored, because distributed.pp_size is 1"});
  CHECK(parse("autopipeline: {}").warnings ==
        std::vector<std::string>{"r.yaml:5: autopipeline: is ignored, because distributed.pp_size is 1"});
}

TEST_CASE("microbatches of a step: accumulation included") {
  Recipe r = parse("");
  CHECK(microbatches_of_step(r, 1) == 2);
  r.distributed.pipeline.emplace().pp_microbatch_size = 2;
  CHECK(microbatches_of_step(r, 1) == 4);
  CHECK(microbatches_of_step(r, 2) == 2);
  CHECK_THROWS_AS(microbatches_of_step(r, 3), Error);
  r.distributed.pipeline->pp_microbatch_size = 8;
  CHECK_THROWS_AS(microbatches_of_step(r, 1), Error);
}

TEST_CASE("dispatchers have AutoModel's names and our own") {
  const auto dispatcher = [](const std::string& keys) {
    return parse_recipe(cat("dataset: {_target_: mock}\nmodel: {config: x, backend: {", keys, "}}"), "r.yaml",
                        {}, RecipeUse::data)
        .model->backend.dispatcher;
  };
  CHECK(dispatcher("") == std::nullopt);
  CHECK(dispatcher("dispatcher: deepep") == DispatcherKind::alltoall);
  CHECK(dispatcher("dispatcher: hybridep") == DispatcherKind::alltoall);
  CHECK(dispatcher("dispatcher: alltoall") == DispatcherKind::alltoall);
  CHECK(dispatcher("dispatcher: torch") == DispatcherKind::allgather);
  CHECK(dispatcher("dispatcher: allgather") == DispatcherKind::allgather);
  CHECK(dispatcher("dispatcher: local") == DispatcherKind::local);
  CHECK(dispatcher("use_deepep: true") == DispatcherKind::alltoall);
  CHECK(dispatcher("enable_deepep: true") == DispatcherKind::alltoall);
  CHECK(dispatcher("use_deepep: false") == DispatcherKind::allgather);
  CHECK(dispatcher("use_deepep: true, dispatcher: hybridep") == DispatcherKind::alltoall);
  CHECK(message_of([&] { dispatcher("enable_deepep: true, dispatcher: torch"); }) ==
        "r.yaml:2: model.backend.enable_deepep: is true, which is the dispatcher alltoall, but dispatcher is "
        "allgather; want one of them, or values that agree");
  CHECK(message_of([&] { dispatcher("enable_deepep: true, use_deepep: false"); })
            .starts_with(
                "r.yaml:2: model.backend.enable_deepep: is true, but model.backend.use_deepep is false"));
  CHECK(message_of([&] {
          dispatcher("dispatcher: magic");
        }).starts_with("r.yaml:2: model.backend.dispatcher: want one of alltoall, allgather, local, deepep"));
  CHECK_FALSE(parse("").model->backend.fake_balanced_gate);
  CHECK(parse_recipe(with(""), "r.yaml", {"model.backend.fake_balanced_gate=true"})
            .model->backend.fake_balanced_gate);
}

TEST_CASE("the keys of dist_env that become variables") {
  const DistEnvSection s =
      parse(
          "dist_env: {nemotronh_ep_require_deepep: true, nemotronh_ep_use_deepep_dispatch: 1, "
          "nemotronh_ep_physical_partition: null, pytorch_alloc_conf: 'expandable_segments:True', "
          "runtime_env: {B_1: 5, A: off, C: 'true', D: 1.50}}")
          .dist_env;
  CHECK(s.nemotronh_ep_require_deepep == VariableText{"1"});
  CHECK(s.nemotronh_ep_use_deepep_dispatch == VariableText{"1"});
  CHECK_FALSE(s.nemotronh_ep_physical_partition);
  CHECK(s.pytorch_alloc_conf == VariableText{"expandable_segments:True"});
  CHECK(s.runtime_env == std::vector<std::pair<std::string, VariableText>>{
                             {"B_1", {"5"}}, {"A", {"0"}}, {"C", {"true"}}, {"D", {"1.50"}}});
  CHECK(error_of("dist_env: {runtime_env: [a]}") ==
        "r.yaml:5: dist_env.runtime_env: want a section of keys, found a list");
  CHECK(error_of("dist_env: {runtime_env: {A: null}}") ==
        "r.yaml:5: dist_env.runtime_env.A: want text, a number, or true or false, found null");
  CHECK(error_of("dist_env: {runtime_env: {A: b}}", {"dist_env.runtime_env.A=null"}) == "no error");
  CHECK(error_of("dist_env: {runtime_env: {A-B: 1}}") ==
        "r.yaml:5: dist_env.runtime_env.A-B: is no name of a variable; want letters, digits and '_'");
  CHECK(error_of("dist_env: {nemotronh_ep_require_deepep: maybe}") ==
        "r.yaml:5: dist_env.nemotronh_ep_require_deepep: want 1, true, yes or on, or 0, false, no or off, "
        "found "
        "'maybe'");
  CHECK(error_of("dist_env: {nemotronh_ep_require_deepeq: true}")
            .ends_with("is 'nemotronh_ep_require_deepep'"));
}
