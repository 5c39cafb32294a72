#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>

#include "data/hf/config_keys.h"
#include "model/config.h"

/// What families share whose layers are those of Hugging Face's Llama: a layer of the files is two blocks,
/// attention and an MLP, in most with a rotary embedding, a SiLU gate and a norm before each. The families
/// differ in defaults, in biases, in norms, in activations, and in what a query sees.
namespace nemocube::decoder_layers {

inline constexpr int attention_slot = 0, mlp_slot = 1;

inline constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
    NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", attention_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::block, "norm", "model.layers.{}.post_attention_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.mlp", mlp_slot},
    NameRow{NamePart::tail, "norm", "model.norm"},
    NameRow{NamePart::tail, "head", "lm_head"},
};
/// Of models saved without their head, and of language models inside others.
inline constexpr std::array aliases{
    NameAlias{"embed_tokens", "model.embed_tokens"},
    NameAlias{"layers", "model.layers"},
    NameAlias{"norm", "model.norm"},
};
/// Each family has a copy: a config is of the family whose table its names have.
inline constexpr NameTable names{.rows = rows, .aliases = aliases};

/// A size that is absent and follows from others.
inline constexpr auto from_others = std::numeric_limits<std::int64_t>::min();

/// A model without layers yet. Sizes of heads follow from others; other sizes are the family's to set.
ModelConfig defaults();

/// vocab_size, hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, head_dim.
void visit_sizes(ModelConfig& config, ConfigKeys& keys);
/// max_position_embeddings, initializer_range, rms_norm_eps, tie_word_embeddings.
void visit_other_keys(ModelConfig& config, ConfigKeys& keys);

/// Sets head_dim where the key is absent. Throws Error where the hidden size is no multiple of the heads.
void set_head_dim(ModelConfig& config, const JsonView& object);

/// Reads num_hidden_layers, whose default is `layers`, sets the sizes that follow from others, and adds the
/// blocks with the names of `table`. pre: the other sizes have been read, the epsilon of norms from
/// `epsilon_key`. Throws Error naming the key where a size cannot be.
void add_layers(ModelConfig& config, const JsonView& object, const NameTable& table, std::int64_t layers,
                const char* epsilon_key = "rms_norm_eps");

/// A block of each layer, and its slot in the table of names.
struct LayerBlock {
  BlockKind kind;
  int slot;
};
/// The same with these blocks in each layer, in the order of their slots.
void add_layers(ModelConfig& config, const JsonView& object, const NameTable& table, std::int64_t layers,
                std::span<const LayerBlock> of_layer, const char* epsilon_key = "rms_norm_eps");

/// Error for another `hidden_act` than the SiLU, which has two names.
void want_silu(const JsonView& object);
/// A warning where one of these keys asks for dropout, which models here do not have.
void warn_of_dropout(const JsonView& object, std::initializer_list<const char*> keys = {"attention_dropout"});

/// The attention of these layers has this config; that of other layers has the common one. Layers that differ
/// have configs of their own (ModelConfig::own_configs). pre: add_layers()
void set_attention(ModelConfig& config, const AttentionConfig& attention,
                   const std::function<bool(std::int64_t)>& has);
/// The queries of these layers see `window` keys; those of other layers see all keys before them.
void set_windows(ModelConfig& config, std::int64_t window, const std::function<bool(std::int64_t)>& slides);
/// The window of layers that have one; 0: none has.
std::int64_t window_of(const ModelConfig& config);
/// The config of a layer's attention.
const AttentionConfig& attention_of(const ModelConfig& config, std::int64_t layer);
/// Whether the queries of a layer see a window of keys.
bool slides(const ModelConfig& config, std::int64_t layer);
/// `layer_types`: "sliding_attention" and "full_attention".
Json layer_types(const ModelConfig& config);
/// Whether each layer slides, by `layer_types`; empty where the key is absent. Throws Error for other words,
/// for another number of layers than `layers`, and for a layer that slides where there is no `window`.
std::vector<bool> read_layer_types(const JsonView& object, std::int64_t layers, std::int64_t window);

/// The key of an activation, and its name.
struct ActivationKey {
  const char *key = "hidden_act", *name = "silu";
};
/// Writes `architectures`, `model_type`, `num_hidden_layers`, the activation, and the keys that visit_keys()
/// visits, in this order.
void write_keys(const ModelConfig& config, const char* architecture, std::string_view model_type,
                void (*visit_keys)(ModelConfig&, ConfigKeys&), Json& to,
                const ActivationKey& activation = {});

/// AutoModel's llama3_flops (components/utils/flops_utils.py), which stands for all of these families there.
double automodel_flops(const ModelSetup& setup, std::int64_t sequences, std::int64_t length);

}  // namespace nemocube::decoder_layers
