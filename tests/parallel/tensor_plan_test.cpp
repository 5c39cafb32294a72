#include <doctest/doctest.h>

#include "tests/support/mpirun.h"
#include "tests/support/occurrences.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("tensor plan: a run on two ranks with Hugging Face's plan has the bits of the family's own") {
  const TestDir dir;
  wait_politely();
  const std::string golden = source_path("tests/goldens/qwen3");
  // base_model_tp_plan and _tp_plan of transformers 5.24
  spit(dir / "plan.json", R"({
  "layers.*.self_attn.q_proj": "colwise",
  "layers.*.self_attn.k_proj": "colwise",
  "layers.*.self_attn.v_proj": "colwise",
  "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
  "layers.*.self_attn.k_norm": "replicated_with_grad_allreduce",
  "layers.*.self_attn.o_proj": "rowwise",
  "layers.*.mlp.gate_proj": "colwise",
  "layers.*.mlp.up_proj": "colwise",
  "layers.*.mlp.down_proj": "rowwise",
  "lm_head": "colwise_gather_output"
})");
  const auto run = [&](const std::string& name, const Words& overrides) {
    Words command{program(), "train", golden + "/recipe.yaml"};
    for (const std::string& o : plus({"model.pretrained_model_name_or_path=" + golden,
                                      "dataset.path=" + golden + "/tokens.safetensors",
                                      "step_scheduler.max_steps=3", "checkpoint.checkpoint_dir=" + name,
                                      "distributed.tp_size=2", "distributed.sequence_parallel=true"},
                                     overrides)) {
      command.emplace_back("--set");
      command.push_back(o);
    }
    return run_process(mpirun(2, command), dir.path());
  };
  const auto own = run("own", {}), pasted = run("pasted", {"distributed.tp_plan=plan.json"});
  CAPTURE(own.err);
  CAPTURE(pasted.err);
  REQUIRE(own.exit_code == 0);
  REQUIRE(pasted.exit_code == 0);
  const auto steps = repeatable(dir / "own" / "training.jsonl");
  CHECK(steps.size() == 3);
  CHECK(repeatable(dir / "pasted" / "training.jsonl") == steps);
  CHECK(occurrences(own.err, "tensor-parallel plan: qwen3_tp_plan, the family's own (") == 1);
  CHECK(occurrences(pasted.err, "tensor-parallel plan: 10 patterns of plan.json, then qwen3_tp_plan (") == 1);
}
