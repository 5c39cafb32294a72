#include "data/hf/families/nemotron_labs_diffusion/nemotron_labs_diffusion.h"

#include <array>
#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"
#include "data/hf/families/mistral/ministral3.h"

namespace nemocube {
namespace {

using decoder_layers::attention_slot;
using decoder_layers::mlp_slot;

constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "encoder.embed_tokens"},
    NameRow{NamePart::block, "norm", "encoder.layers.{}.input_layernorm", attention_slot},
    NameRow{NamePart::mixer, "", "encoder.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::block, "norm", "encoder.layers.{}.post_attention_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "", "encoder.layers.{}.mlp", mlp_slot},
    NameRow{NamePart::tail, "norm", "encoder.norm"},
    NameRow{NamePart::tail, "head", "diffusion_head"},
};
/// Of models saved without their head, and of older ones with an encoder of images beside them.
constexpr std::array aliases{
    NameAlias{"embed_tokens", "encoder.embed_tokens"},
    NameAlias{"layers", "encoder.layers"},
    NameAlias{"norm", "encoder.norm"},
    NameAlias{"language_model.model", "encoder"},
    NameAlias{"language_model.lm_head", "diffusion_head"},
};
constexpr NameTable names{.rows = rows, .aliases = aliases, .body = "encoder", .class_body = "encoder"};

void visit_diffusion(DiffusionConfig& diffusion, ConfigKeys& keys) {
  keys.key({"mask_token_id"}, diffusion.mask_token_id);
  keys.key({"block_size"}, diffusion.block_size);
}

void read(ModelConfig& config, const JsonView& object) {
  ministral3::read(config, object, names);
  ReadKeys keys(object);
  visit_diffusion(config.diffusion.emplace(), keys);
}

void write(const ModelConfig& config, Json& to) {
  ministral3::write(config, "NemotronLabsDiffusionModel", nemotron_labs_diffusion_family.model_type, to);
  to["dlm_paradigm"] = "bidirectional";  // the class's own default
  to["mask_token_id"] = config.diffusion->mask_token_id;
  to["block_size"] = config.diffusion->block_size;
}

constexpr std::string_view tp_plans[] = {"nemotron_labs_diffusion_tp_plan"};

}  // namespace

constinit const Family nemotron_labs_diffusion_family{
    .model_type = "nemotron_labs_diffusion",
    .has_class = [](std::string_view name) { return is_class_named(name, "NemotronLabsDiffusion"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = decoder_layers::automodel_flops,
    .tp_plans = tp_plans};

}  // namespace nemocube
