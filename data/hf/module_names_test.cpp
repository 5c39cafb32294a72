#include "data/hf/module_names.h"

#include <doctest/doctest.h>

#include <array>

#include "data/hf/test_config.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("module names: stages name modules as files and as classes do") {
  const ModelConfig config = small_test_config("M*");
  const StageModules known = stage_modules(config);
  for (const char* name :
       {"backbone.embeddings", "model.embeddings", "backbone.embed_tokens", "model.embed_tokens"})
    CHECK(known.find(name) == embeddings_name());
  for (const char* name : {"backbone.norm_f", "model.norm_f", "backbone.norm", "model.norm"})
    CHECK(known.find(name) == final_norm_name());
  for (const char* name : {"backbone.layers.31", "model.layers.31"})
    CHECK(known.find(name) == block_name(31));
  CHECK(known.find("lm_head") == head_name());
  for (const char* other : {"embeddings", "layers.1", "backbone.layers.x", "backbone.layers.-1",
                            "backbone.layers.1.mixer", "model.lm_head", "backbone", "modelx.norm", ""})
    CHECK_FALSE(known.find(other));
  CHECK(known.has_no_parameters("backbone.rotary_emb"));
  CHECK(known.has_no_parameters("model.rotary_emb"));
  CHECK_FALSE(known.has_no_parameters("rotary_emb"));
  const ManualStages stages = manual_stages({{"model.embed_tokens"},
                                             {"model.layers.1", "model.rotary_emb", "model.layers.0"},
                                             {"model.norm", "lm_head"}},
                                            2, known);
  CHECK(stages.stages ==
        std::vector<ModelChunk>{{0, 0, true, false}, {0, 2, false, false}, {2, 2, false, true}});
  CHECK(stages.skipped == std::vector<std::string>{"model.rotary_emb"});
}

TEST_CASE("module names: a layer of files that is two blocks") {
  static constexpr std::array rows{
      NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
      NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", 0},
      NameRow{NamePart::block, "norm", "model.layers.{}.post_attention_layernorm", 1},
      NameRow{NamePart::tail, "norm", "model.norm"}, NameRow{NamePart::tail, "head", "lm_head"}};
  static constexpr NameTable table{rows};
  ModelConfig config;
  config.names = {table, {{0, 0}, {0, 1}, {1, 0}, {1, 1}}};
  const StageModules known = stage_modules(config);
  CHECK(known.wanted == "model.embed_tokens, model.layers.N, model.norm, lm_head or model.rotary_emb");
  const ManualStages stages = manual_stages(
      {{"model.embed_tokens", "model.layers.0"}, {"model.layers.1", "model.norm", "lm_head"}}, 4, known);
  CHECK(stages.stages == std::vector<ModelChunk>{{0, 2, true, false}, {2, 4, false, true}});
  CHECK(message_of([&] { manual_stages({{"model.layers.2"}}, 4, known); }) ==
        "module_fqns_per_model_part[0]: 'model.layers.2', but the model has 2 layers");
}

TEST_CASE("module names: as the classes of Hugging Face and NeMo AutoModel call them") {
  CHECK(usual_names.class_name("backbone.layers.3.mixer.q_proj") == "model.layers.3.mixer.q_proj");
  CHECK(usual_names.class_name("backbone") == "model");
  CHECK(usual_names.class_name("lm_head") == "lm_head");
  CHECK(usual_names.class_name("backbones.x") == "backbones.x");
}
