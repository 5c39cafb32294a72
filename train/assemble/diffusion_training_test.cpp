#include "train/assemble/diffusion_training.h"

#include <doctest/doctest.h>

#include "data/hf/hf_config.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const ModelConfig denoiser = read_hf_config(source_dir() / "tests" / "goldens" / "nemotron_labs_diffusion");

Recipe recipe(std::optional<Paradigm> paradigm, const DllmSection& section = {.mode = DllmMode::hybrid}) {
  Recipe r;
  r.file = "r.yaml";
  r.seed = 9;
  r.model.emplace().dlm_paradigm = paradigm;
  r.dllm = section;
  r.dataset.emplace().seq_length = 64;
  return r;
}

}  // namespace

TEST_CASE("denoising: a model that denoises wants a paradigm, and others have none") {
  ModelConfig other = denoiser;
  other.diffusion.reset();
  CHECK(message_of([&] { diffusion_training(recipe({}), denoiser); })
            .starts_with("r.yaml: model.dlm_paradigm is missing: want autoregressive, bidirectional or "
                         "block_diff"));
  CHECK(message_of([&] { diffusion_training(recipe(Paradigm::autoregressive), other); }) ==
        "r.yaml: model.dlm_paradigm is given, but this model denoises nothing; want no such key");
  CHECK(diffusion_training(recipe({}), other) == DiffusionTraining{});
  CHECK(diffusion_training(recipe(Paradigm::bidirectional), denoiser) ==
        DiffusionTraining{.paradigm = Paradigm::bidirectional});
  Recipe blocks = recipe(Paradigm::block_diff);
  CHECK(diffusion_training(blocks, denoiser).block_size == 4);  // of config.json
  blocks.model->block_size = 6;
  CHECK(diffusion_training(blocks, denoiser).block_size == 6);
}

TEST_CASE("denoising: the recipe's corruption") {
  const auto of = [](const Recipe& r) { return recipe_corruption(r, denoiser, *r.dataset); };
  CHECK_FALSE(of(recipe(Paradigm::autoregressive)));
  const Corruption usual = *of(recipe(Paradigm::block_diff));
  CHECK(usual.paradigm == Paradigm::block_diff);
  CHECK(usual.mask_token == 39);  // of config.json
  CHECK(usual.eps == 1e-3);
  CHECK_FALSE(usual.block_size);
  CHECK(usual.weight == 1);
  CHECK(usual.fill_multiple == 1);
  CHECK(usual.longest == 64);
  CHECK(usual.seed == 9);
  const Corruption given = *of(recipe(Paradigm::bidirectional, {.mode = DllmMode::hybrid,
                                                                .mask_token_id = 5,
                                                                .eps = 0.2,
                                                                .block_size = 8,
                                                                .half_life_ratio = 0.5,
                                                                .ar_loss_alpha = 0.3,
                                                                .pad_block_size = 16}));
  CHECK(given.paradigm == Paradigm::bidirectional);
  CHECK(given.mask_token == 5);
  CHECK(given.eps == 0.2);
  CHECK(given.block_size == 8);
  CHECK(given.half_life_ratio == 0.5);
  CHECK(given.weight == 0.3);
  CHECK(given.fill_multiple == 16);
  CHECK(given.fill_token == 2);  // eos_token_id
  CHECK(message_of([&] {
          of(recipe(Paradigm::block_diff, {.mode = DllmMode::hybrid, .mask_token_id = 40}));
        }) == "r.yaml: dllm.mask_token_id is 40, the model's vocabulary has 40 tokens; want one of these");
  ModelConfig endless = denoiser;
  endless.eos_token_id.clear();
  const Recipe fills = recipe(Paradigm::block_diff, {.mode = DllmMode::hybrid, .pad_block_size = 4});
  CHECK(message_of([&] {
          recipe_corruption(fills, endless, *fills.dataset);
        }).starts_with("r.yaml: dllm.pad_block_size is 4, but config.json has no eos_token_id"));
}
