#include <doctest/doctest.h>

#include "train/recipe/test_recipes.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const std::string golden = source_path("tests/goldens/nemotron_labs_diffusion");
const std::string section = "dllm: {mode: hybrid}\n";

/// A recipe that trains the small model of the golden.
std::string denoising(const std::string& more, const std::string& paradigm = "block_diff") {
  return cat("step_scheduler: {global_batch_size: 4, local_batch_size: 2, max_steps: 5}\n",
             "model: {pretrained_model_name_or_path: ", golden,
             paradigm.empty() ? "" : cat(", dlm_paradigm: ", paradigm), "}\n",
             "dataset: {_target_: tokens, path: ", golden, "/input.safetensors}\n", "optimizer: {lr: 1e-3}\n",
             more);
}
std::string fault(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return error_of(yaml, overrides, RecipeUse::train);
}

}  // namespace

TEST_CASE("dllm: the keys of AutoModel's recipe") {
  const Recipe r = parse(denoising("dllm: {mode: hybrid, mask_token_id: 100, eps: 0.001, block_size: null, "
                                   "half_life_ratio: null, ar_loss_alpha: 0.3, pad_block_size: 32, "
                                   "pad_seq_len_divisible: 1024}\n"),
                         {"model.block_size=16"}, RecipeUse::train);
  CHECK(r.model->dlm_paradigm == Paradigm::block_diff);
  CHECK(r.model->block_size == 16);
  CHECK(r.dllm->mode == DllmMode::hybrid);
  CHECK(r.dllm->mask_token_id == 100);
  CHECK_FALSE(r.dllm->block_size);
  CHECK(r.dllm->ar_loss_alpha == 0.3);
  CHECK(r.dllm->pad_block_size == 32);
  CHECK(r.no_effect == std::vector<std::string>{"dllm.pad_seq_len_divisible"});
  const Recipe again = parse(describe(r));
  CHECK(again.model->dlm_paradigm == r.model->dlm_paradigm);
  CHECK(again.dllm->ar_loss_alpha == 0.3);
  CHECK(parse(denoising(section), {"dllm.half_life_ratio=0.5"}, RecipeUse::train).no_effect ==
        std::vector<std::string>{"dllm.half_life_ratio"});
  CHECK(parse(denoising("", "autoregressive"), {"model.block_size=4"}, RecipeUse::train).no_effect ==
        std::vector<std::string>{"model.block_size"});
}

TEST_CASE("dllm: what it wants, and what is refused by name") {
  CHECK(contains(fault(denoising("")), "model.dlm_paradigm: is block_diff, and the section dllm"));
  CHECK(contains(fault(denoising(section, "autoregressive")),
                 "dllm: says what is noised, but model.dlm_paradigm is autoregressive"));
  CHECK(contains(fault(denoising(section, "")), "but model.dlm_paradigm is absent"));
  CHECK(contains(fault(denoising("dllm: {eps: 0.1}\n")), "dllm.mode: is missing; want hybrid"));
  CHECK(contains(fault(denoising("dllm: {mode: mdlm}\n")), "dllm.mode: want one of hybrid, found 'mdlm'"));
  CHECK(contains(
      fault(denoising(section, "sideways")),
      "model.dlm_paradigm: want one of autoregressive, bidirectional, block_diff, found 'sideways'"));
  CHECK(contains(fault(denoising(section), {"dllm.ar_loss_alpha=0"}), "dllm.ar_loss_alpha: is 0"));
  CHECK(contains(fault(denoising(section), {"dllm.half_life_ratio=0"}), "dllm.half_life_ratio: is 0"));
  CHECK(contains(fault(denoising(section), {"dllm.supervise_padding=true"}),
                 "dllm.supervise_padding: is true"));
  CHECK(contains(fault(denoising(section), {"distributed.cp_size=2"}), "distributed.cp_size: is 2"));
  CHECK_FALSE(contains(fault(denoising("", "autoregressive"), {"distributed.cp_size=2"}), "cp_size: is 2"));
  CHECK(contains(fault(denoising(section, "bidirectional"), {"evaluation.squad_metrics=true"}),
                 "evaluation.squad_metrics: is true, but answers are generated autoregressively"));
}

TEST_CASE("dllm: what is evaluated is autoregressive") {
  const std::string rows =
      cat("validation_dataset: {_target_: tokens, path: ", golden, "/input.safetensors}\n");
  CHECK(contains(error_of(denoising(section + rows), {}, RecipeUse::evaluate),
                 "model.dlm_paradigm: is block_diff, but what is evaluated here is autoregressive"));
  CHECK(error_of(denoising(rows, "autoregressive"), {}, RecipeUse::evaluate) == "no error");
  CHECK(error_of(denoising(rows, ""), {}, RecipeUse::evaluate) == "no error");
}
