#include "model/tensor_name.h"

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("tensor names: each tensor of a model has a text that is read as the same name") {
  ModelSetup setup = with_adapters(with_mtp(tiny_config_with_all_tensors(), 2, false));
  std::set<std::string> texts;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    CAPTURE(spec.name);
    CHECK(usual_names.text(spec.id) == spec.name);
    CHECK(usual_names.find(spec.name) == spec.id);
    CHECK(texts.insert(spec.name).second);
  }
  CHECK(texts.contains("backbone.embeddings.weight"));
  CHECK(texts.contains("backbone.layers.3.norm.weight"));
  CHECK(texts.contains("backbone.layers.0.mixer.norm.weight"));
  CHECK(texts.contains("backbone.layers.3.mixer.experts.up_proj.lora_A.weight"));
  CHECK(texts.contains("backbone.norm_f.weight"));
  CHECK(texts.contains("lm_head.weight"));
  CHECK(texts.contains("mtp.layers.2.eh_proj.weight"));
  CHECK(texts.contains("mtp.layers.3.final_layernorm.weight"));
  CHECK(texts.contains("mtp.layers.3.mixer.gate.weight"));
}

TEST_CASE("tensor names: modules, what is around them, and parts of the model") {
  const TensorName weight = mixer_name(3, "experts.up_proj.weight"), module = weight.module();
  CHECK(module == mixer_name(3, "experts.up_proj"));
  CHECK(module.module() == module);
  CHECK(module.around() == mixer_name(3, "experts"));
  CHECK(module.around().around() == mixer_name(3));
  CHECK(module / "lora_A.weight" == mixer_name(3, "experts.up_proj.lora_A.weight"));
  CHECK(mixer_of(block_name(3)) == weight.whole());
  CHECK((mixer_of(depth_name(3)) == TensorName{NamePart::depth_mixer, 3, ""}));
  CHECK(weight.block_of_model() == 3);
  CHECK(block_name(4, "norm.weight").block_of_model() == 4);
  for (const TensorName& outside : {embeddings_name(), final_norm_name(), head_name(), depth_name(1)})
    CHECK_FALSE(outside.block_of_model());
  CHECK(depth_name(1).in_depth());
  CHECK(mixer_of(depth_name(1)).in_mixer());
  CHECK_FALSE(block_name(1).in_mixer());
  CHECK_THROWS_AS(mixer_of(head_name()), std::logic_error);
}

TEST_CASE("tensor names: patterns, and texts that are no names") {
  CHECK(usual_names.pattern(mixer_name(7, "q_proj")) == "backbone.layers.*.mixer.q_proj");
  CHECK(usual_names.pattern(depth_name(0, mtp_join)) == "mtp.layers.*.eh_proj");
  CHECK(usual_names.pattern(head_name()) == "lm_head");
  for (const char* other : {"", "lm_headx", "backbonex", "backbone.layers.-1.mixer.D", "layers.3.mixer.D",
                            "backbone.layers.3x.norm", "mtp.layers.x.norm", "model.norm"}) {
    CAPTURE(other);
    CHECK_FALSE(usual_names.find(other));
  }
  CHECK(usual_names.is_stack("backbone.layers.3.mixer.experts.up_proj"));
  CHECK(usual_names.is_stack("mtp.layers.3.mixer.experts.down_proj"));
  CHECK_FALSE(usual_names.is_stack("backbone.layers.3.mixer.up_proj"));
  CHECK_FALSE(usual_names.is_stack("lm_head"));
}

TEST_CASE("tensor names: a family spells names by a table of its own") {
  constexpr std::array rows{NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
                            NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm"},
                            NameRow{NamePart::mixer, "", "model.layers.{}.self_attn"},
                            NameRow{NamePart::tail, "norm", "model.norm"},
                            NameRow{NamePart::tail, "head", "lm_head"}};
  const NameTable table(rows, {});
  ModelSetup setup = tiny_config("*");
  setup.config.names = &table;
  std::vector<std::string> texts;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    texts.push_back(spec.name);
    CHECK(table.find(spec.name) == spec.id);
  }
  CHECK(texts == std::vector<std::string>{
                     "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                     "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                     "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
                     "model.norm.weight", "lm_head.weight"});
  Stack model(setup, DType::f32, Device::cpu);
  CHECK(model.parameters().get("model.norm.weight").id == final_norm_name() / "weight");
  CHECK_THROWS_AS((void)table.text(depth_name(0, "norm")), Error);
}
