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

namespace {
const ModelNames usual;
}

TEST_CASE("tensor names: each tensor of a model has a text that is read as the same name") {
  ModelSetup setup = with_adapters(with_mtp(tiny_config_with_all_tensors(), 2, false));
  std::set<std::string> texts;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    CAPTURE(spec.name);
    CHECK(usual.text(spec.id) == spec.name);
    CHECK(usual.find(spec.name) == spec.id);
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
  CHECK(usual.pattern(mixer_name(7, "q_proj")) == "backbone.layers.*.mixer.q_proj");
  CHECK(usual.pattern(depth_name(0, mtp_join)) == "mtp.layers.*.eh_proj");
  CHECK(usual.pattern(head_name()) == "lm_head");
  for (const char* other : {"", "lm_headx", "backbonex", "backbone.layers.-1.mixer.D", "layers.3.mixer.D",
                            "backbone.layers.3x.norm", "mtp.layers.x.norm", "model.norm"}) {
    CAPTURE(other);
    CHECK_FALSE(usual.find(other));
  }
  CHECK(usual_names.is_stack("backbone.layers.3.mixer.experts.up_proj"));
  CHECK(usual_names.is_stack("mtp.layers.3.mixer.experts.down_proj"));
  CHECK_FALSE(usual_names.is_stack("backbone.layers.3.mixer.up_proj"));
  CHECK_FALSE(usual_names.is_stack("lm_head"));
}

TEST_CASE("tensor names: a family spells names by a table of its own") {
  static constexpr std::array rows{NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
                                   NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm"},
                                   NameRow{NamePart::mixer, "", "model.layers.{}.self_attn"},
                                   NameRow{NamePart::tail, "norm", "model.norm"},
                                   NameRow{NamePart::tail, "head", "lm_head"}};
  static constexpr NameTable table{rows};
  ModelSetup setup = tiny_config("*");
  setup.config.names = table;
  const ModelNames& names = setup.config.names;
  std::vector<std::string> texts;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    texts.push_back(spec.name);
    CHECK(names.find(spec.name) == spec.id);
  }
  CHECK(texts == std::vector<std::string>{
                     "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                     "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                     "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
                     "model.norm.weight", "lm_head.weight"});
  Stack model(setup, DType::f32, Device::cpu);
  CHECK(model.parameters().get("model.norm.weight").id == final_norm_name() / "weight");
  CHECK_THROWS_AS((void)names.text(depth_name(0, "norm")), Error);
}

TEST_CASE("tensor names: a layer of the files may be several blocks") {
  static constexpr std::array rows{
      NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
      NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", 0},
      NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", 0},
      NameRow{NamePart::block, "norm", "model.layers.{}.post_attention_layernorm", 1},
      NameRow{NamePart::mixer, "", "model.layers.{}.mlp", 1},
      NameRow{NamePart::tail, "norm", "model.norm"}};
  static constexpr NameTable table{rows};
  // Layer 1 has no attention, layer 2 is empty.
  const ModelNames names(table, {{0, 0}, {0, 1}, {1, 1}, {3, 0}, {3, 1}});
  CHECK(names.text(mixer_name(2, "up_proj.weight")) == "model.layers.1.mlp.up_proj.weight");
  CHECK(names.text(block_name(2, "norm")) == "model.layers.1.post_attention_layernorm");
  CHECK(names.pattern(mixer_name(3, "q_proj")) == "model.layers.*.self_attn.q_proj");
  CHECK(names.text(final_norm_name()) == "model.norm");
  for (std::int64_t block = 0; block < 5; ++block)
    for (const TensorName& name : {block_name(block, "norm.weight"), mixer_name(block, "o_proj.weight")})
      CHECK(names.find(names.text(name)) == name);
  for (const char* other : {"model.layers.1.self_attn.q_proj", "model.layers.2.mlp.up_proj",
                            "model.layers.4.input_layernorm", "model.layers.0.pre_layernorm"}) {
    CAPTURE(other);
    CHECK_FALSE(names.find(other));
  }
  CHECK_THROWS_AS((void)names.text(mixer_name(5, "q_proj")), Error);
  CHECK(names.layered());
  CHECK_FALSE(usual.layered());
  CHECK(names.layers(5) == 4);
  CHECK(usual.layers(5) == 5);
  std::vector<std::int64_t> first;
  for (std::int64_t layer = 0; layer <= 4; ++layer) first.push_back(names.first_block(layer));
  CHECK(first == std::vector<std::int64_t>{0, 2, 3, 3, 5});
  CHECK(names.first_of_slots() == std::vector<std::int64_t>{0, 1});
  CHECK(usual.first_of_slots() == std::vector<std::int64_t>{0});
  CHECK(names.layer_text(3) == "model.layers.3");
  const ModelNames longer(table, {{0, 0}, {0, 1}}, 3);  // the last two layers are empty
  CHECK(longer.layers(2) == 3);
  CHECK(longer.first_block(1) == 2);
  CHECK(longer.first_block(3) == 2);
  CHECK(usual.layer_text(3) == usual.text(block_name(3)));
}
