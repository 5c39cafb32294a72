#include <doctest/doctest.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>

#include "tests/support/paths.h"
#include "train/recipe/recipe.h"

using namespace nemocube;
using nemocube::testing::source_path;

namespace {

const std::string model_folder = source_path("tests/goldens/train20");

std::string with(const std::string& more, const std::string& scheduler = "max_steps: 5") {
  return cat("step_scheduler: {global_batch_size: 4, ", scheduler, "}\nmodel: {config: x}\n",
             "dataset: {_target_: tokens, path: x.safetensors}\noptimizer: {lr: 1e-3}\n", more);
}

Recipe parse(const std::string& yaml) { return parse_recipe(yaml, "r.yaml", {}, RecipeUse::data); }

}  // namespace

TEST_CASE("describe() reads back as the same recipe") {
  const std::vector<std::string> yamls{
      with(""),
      with("clip_grad_norm: {max_norm: 0}\nkernels: {rmsnorm: fused}\nseed: 3\nbenchmark: {warmup_steps: 2}\n"
           "lr_scheduler: {lr_decay_style: WSD, wsd_decay_steps: 2, lr_wsd_decay_style: minus_sqrt, unit: "
           "samples}\n"
           "validation_dataset: {_target_: squad, padding: longest, truncation: true, seq_length: 8, "
           "chat_template: \"a\\n\\t'$x' \\\"\\\\ {{ b }}\"}\nvalidation_dataset_2: {_target_: messages, "
           "path: p}\n"
           "tokenizer: tok\n",
           "num_epochs: null, preemption_signal: null, ckpt_every_steps: null"),
      "model: {config: x, initialisation: megatron}\ndataset: {_target_: mock, seq_len: 16}\noptimizer: "
      "{_target_: SGD, momentum: 0.5, "
      "param_group_overrides: [{pattern: 'a\\.b$', lr_mult: 0.1}, {pattern: c}]}\nloss_fn: {_target_: "
      "ChunkedCrossEntropy}\nevaluation: {squad_metrics: on}\nmfu: {device: h100, peak_tflops: "
      "0.5}\nmoe_metrics: {enabled: false, mode: brief}\n"
      "validation_dataloader: {shuffle: false, batch_size: 3}\n",
      "dataset: {_target_: messages, path: p, chat_template: null}\noptimizer: {_target_: FusedAdam, "
      "adam_w_mode: "
      "false}\nbenchmark: {peak_tflops: 2}\nmodel: {config: {pretrained_model_name_or_path: y}}\n",
      with("distributed: {_target_: MegatronFSDPManager, zero_dp_strategy: optim, dp_size: 4}\n"
           "dist_env: {timeout_minutes: 0.25}\ndebug: {check_collectives: true}\n"),
      with("distributed: {dp_replicate_size: 2, reshard_after_forward: false, mp_policy: {reduce_dtype: "
           "float32}}\n"),
      with("distributed: {strategy: ddp, tp_plan: qwen3_tp_plan}\n"),
      "dataset: {_target_: messages, path: p, mask_generation_prompt: true, preserve_tool_argument_mappings: "
      "false, chat_template_kwargs: {a: no, b: "
      "'no', c: null, d: "
      "[1, 2.5, 1e-8, 20.0, {e: \"$x\\n\"}], f: -3, g: {}, h: x y}}\n",
      with("tensorboard: {}\n"),
      with(
          "tensorboard: {enabled: false, tensorboard_dir: a/b, tensorboard_log_interval: 10, log_throughput: "
          "true, tensorboard_queue_size: 5}\n"),
      with("distributed: {tp_size: 2, pp_size: 2, cp_size: 2, ep_size: 4, expert_tp_size: 2, "
           "sequence_parallel: "
           "true, tp_cross_entropy: off, cp_comm_type: all_gather, tp_plan: {'*.up_proj': colwise, a$b: "
           "rowwise}, "
           "moe: {reshard_after_forward: false}, pipeline: {pp_schedule: ScheduleGPipe, pp_microbatch_size: "
           "1, "
           "layers_per_stage: 3, round_virtual_stages_to_pp_multiple: down, block_weights: {head: 2.5}}}\n"
           "dist_env: {backend: 'cpu:gloo,cuda:nccl', nemotronh_ep_require_deepep: on, pytorch_alloc_conf: "
           "'a:True', runtime_env: {A: 1, B: false, C: 'a \"b\"'}}\n"),
      "dataset: {_target_: mock}\nmodel: {config: x, backend: {enable_deepep: false, fake_balanced_gate: "
      "true}}\ndistributed: {pp_size: 2}\nautopipeline: {module_fqns_per_model_part: [[a, b], [c]]}\n"};
  ::setenv("x", "value of x", 1);
  ::setenv("b", "x", 1);
  for (const std::string& yaml : yamls) {
    const std::string once = describe(parse(yaml));
    CAPTURE(once);
    CHECK(describe(parse(once)) == once);
    CHECK(parse(once).no_effect.empty());
  }
  CHECK(parse(describe(parse(yamls[1]))).validation_datasets.at("default").chat_template ==
        "a\n\t'value of x' \"\\ {{ b }}");
  const Recipe null_template = parse(describe(parse(yamls[3])));
  REQUIRE(null_template.dataset->chat_template);
  CHECK_FALSE(*null_template.dataset->chat_template);
  CHECK_FALSE(parse(describe(parse(with("")))).dataset->chat_template);
  CHECK(null_template.optimizer->kind == OptimizerKind::adam);
  CHECK(null_template.mfu.peak_tflops == 2);
  CHECK(null_template.model->path == "y");
  CHECK(parse(describe(parse(yamls[4]))).distributed.zero_dp_strategy == ZeroLevel::optimizer);
  CHECK(parse(describe(parse(yamls[5]))).distributed.mp_policy.reduce_dtype == DType::f32);
  CHECK(parse(describe(parse(yamls[6]))).distributed.strategy == Strategy::ddp);
  CHECK(parse(describe(parse(yamls[2]))).model->initialisation == Initialisation::megatron);
  CHECK(parse(describe(parse(yamls[2]))).optimizer->param_group_overrides[0].pattern == "a\\.b$");
}

TEST_CASE("the golden recipe") {
  const std::string path = cat(model_folder, "/recipe.yaml");
  const Recipe r = load_recipe(path, {cat("model.pretrained_model_name_or_path=", model_folder),
                                      cat("dataset.path=", model_folder, "/tokens.safetensors")});
  CHECK(r.file == path);
  CHECK(r.seed == 1111);
  CHECK(r.dataset->kind == DatasetKind::tokens);
  CHECK(r.optimizer->eps == 1e-8);
  CHECK(r.clip_grad_norm.max_norm == 3.5);
  CHECK(r.no_effect.empty());
}

TEST_CASE("damaged recipes are errors or recipes, nothing else") {
  std::ifstream in(cat(model_folder, "/recipe.yaml"), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  REQUIRE(whole.size() > 100);
  const std::string bytes =
      "\n\t :-[]{}&*#?|>'\"!%@$,\xff\x80"
      "0e.";
  std::uint64_t state = 1;
  const auto below = [&](std::size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state >> 33) % n;
  };
  int loaded = 0;
  for (int round = 0; round < 600; ++round) {
    std::string text = whole;
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(text.size());
      if (below(3) == 0) text.resize(at + 1);
      if (below(2) == 0) text[at] = bytes[below(bytes.size())];
      if (below(4) == 0) text.insert(at, text.substr(below(text.size()), below(40)));
    }
    try {
      const Recipe r = parse_recipe(text, "r.yaml", {}, RecipeUse::schedule);
      CHECK(describe(parse_recipe(describe(r), "r.yaml", {}, RecipeUse::schedule)).size() > 0);
      ++loaded;
    } catch (const Error& error) {
      CHECK(std::string(error.what()).starts_with("r.yaml:"));
    }
  }
  CHECK(loaded > 0);
  CHECK(loaded < 600);
}
