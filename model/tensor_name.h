#pragma once
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Names of a model's tensors and modules as values. Texts are for files, messages and patterns that people
/// write.
namespace nemocube {

/// The part of a model that a tensor or module belongs to.
enum class NamePart : std::uint8_t {
  front,       ///< how rows enter: embeddings
  block,       ///< of block i, outside of its mixer: norms
  mixer,       ///< the mixer of block i
  tail,        ///< how rows leave: the final norm, the head
  depth,       ///< of block i of all depths of multi-token prediction, outside of its mixer
  depth_mixer  ///< the mixer of that block
};

/// The name of a tensor, or of a module: of a weight the name without ".weight".
struct TensorName {
  NamePart part = NamePart::front;
  /// The block's number: in `block` and `mixer` among the blocks of the model, in `depth` and `depth_mixer`
  /// among the blocks of all depths, one depth after another; 0 in `front` and `tail`.
  std::int64_t block = 0;
  std::string
      member;  ///< below the part: "in_proj.weight", "experts.up_proj", "norm.weight"; empty: the part itself

  /// The name of a member of this module.
  TensorName operator/(std::string_view inner) const;
  /// The module of a weight: the member without ".weight".
  TensorName module() const;
  /// The module that has this member: "experts" of "experts.up_proj", and of "q_proj" its mixer.
  TensorName around() const;
  /// The part of the model that has the member.
  TensorName whole() const { return {part, block, ""}; }
  bool in_mixer() const { return part == NamePart::mixer || part == NamePart::depth_mixer; }
  bool in_depth() const { return part == NamePart::depth || part == NamePart::depth_mixer; }
  /// The number of a block of the model; nothing in parts other than `block` and `mixer`.
  std::optional<std::int64_t> block_of_model() const;

  auto operator<=>(const TensorName&) const = default;
  bool operator==(const TensorName&) const = default;
};

inline TensorName block_name(std::int64_t block, std::string_view member = "") {
  return {NamePart::block, block, std::string(member)};
}
inline TensorName mixer_name(std::int64_t block, std::string_view member = "") {
  return {NamePart::mixer, block, std::string(member)};
}
inline TensorName depth_name(std::int64_t block, std::string_view member = "") {
  return {NamePart::depth, block, std::string(member)};
}
/// The mixer of a block: `block` is block_name(i) or depth_name(i).
TensorName mixer_of(const TensorName& block);

/// The modules outside blocks. A weight is embeddings_name() / "weight".
TensorName embeddings_name();
TensorName final_norm_name();
/// Of per-layer inputs (model/front/per_layer_inputs.h).
TensorName per_layer_embeddings_name();
TensorName per_layer_model_projection_name();
TensorName per_layer_projection_norm_name();
TensorName head_name();

/// The norm behind a mixer (Residual in model/blocks/block_config.h). The norm before a mixer is "norm".
inline constexpr const char* post_norm = "post_norm";
/// The number of a layer behind its last block (ModelConfig::layer_scalars).
inline constexpr const char* layer_scalar = "layer_scalar";
/// Modules of multi-token prediction (docs/mtp.md). The first block of a depth has norms of the two inputs
/// and the layer that joins them; the last block of a depth has a norm behind it.
inline constexpr const char *mtp_embedding_norm = "enorm", *mtp_hidden_norm = "hnorm", *mtp_join = "eh_proj",
                            *mtp_final_norm = "final_layernorm";

/// The place of a block of a model in the model's files. One layer of the files may be
/// several blocks, such as attention and MLP.
struct LayerSlot {
  std::int64_t layer = 0;
  int slot = 0;  ///< which of the layer's blocks: the rows of a table of names tell slots apart

  auto operator<=>(const LayerSlot&) const = default;
};

/// A row of a table of names: how members of a part are spelled.
struct NameRow {
  NamePart part;
  std::string_view member;  ///< this member and all below it; empty: every member of the part
  std::string_view text;    ///< "{}" stands for the number of the layer
  int slot = 0;             ///< of blocks and their mixers: LayerSlot::slot
};

/// Another spelling of a module: names that begin with `spelled` mean names that begin with `meant`.
struct NameAlias {
  std::string_view spelled, meant;
};

/// Tensors that files may hold and no model reads: those below `text`, of layers in which the model has no
/// weight of the module `without`.
struct UnreadRow {
  std::string_view text, without;  ///< "{}" stands for the number of the layer
};

/// How a family of models spells names. Of the rows of a part and slot the first that fits counts.
struct NameTable {
  std::span<const NameRow> rows;
  /// The members of mixers that files may store as one tensor for each expert.
  std::span<const std::string_view> stacks = {};
  /// Other spellings that files have. The first that fits counts.
  std::span<const NameAlias> aliases = {};
  std::span<const UnreadRow> unread = {};
  /// The module around embeddings and blocks: "backbone".
  std::string_view body = "model";
  /// The same in the classes of Hugging Face and NeMo AutoModel, by which recipes and adapters name modules.
  std::string_view class_body = "model";

  /// Whether the text names a stack of experts.
  bool is_stack(std::string_view text) const;
  /// Whether a row fits the text, of whatever layer.
  bool knows(std::string_view text) const;
  /// Of a tensor that models may leave unread, the weight whose absence says so (UnreadRow).
  std::optional<std::string> unread_without(std::string_view text) const;
  /// Replaces an alias by the spelling of the rows: "model.layers.0.norm" -> "backbone.layers.0.norm". All
  /// other names stay as they are.
  std::string canonical(std::string_view text) const;
  /// The name with `class_body` in the place of `body`: "backbone.layers.0.norm" -> "model.layers.0.norm"
  std::string class_name(std::string_view canonical) const;
};

/// The names of a config unless a family brings others: as in the files of nemotron_h models.
extern const NameTable usual_names;

/// The names of a model: the table of its family, and where its blocks are in the files.
class ModelNames {
 public:
  /// Each block is a layer of the files. The table lives as long as the program.
  ModelNames(const NameTable& table = usual_names) : table_(&table) {}  // NOLINT: a table alone is such names
  /// `blocks`: the slot of each block in order, ascending by layer and slot. `layers`: number of layers of
  /// the files, to be given where the last layers have no block.
  ModelNames(const NameTable& table, std::vector<LayerSlot> blocks, std::int64_t layers = 0)
      : table_(&table), blocks_(std::move(blocks)), layers_(layers) {}

  /// "backbone.layers.3.mixer.in_proj.weight". Throws Error where no row fits, as pattern() does.
  std::string text(const TensorName& name) const;
  /// With `*` in the place of the layer's number: "backbone.layers.*.mixer.in_proj"
  std::string pattern(const TensorName& name) const;
  /// The name with this spelling; nothing where no row fits.
  std::optional<TensorName> find(std::string_view text) const;
  const NameTable& table() const { return *table_; }

  /// Whether a layer of the files may be several blocks.
  bool layered() const { return !blocks_.empty(); }
  /// LayerSlot::slot of a block.
  int slot(std::int64_t block) const {
    return layered() ? blocks_.at(static_cast<std::size_t>(block)).slot : 0;
  }
  /// LayerSlot::layer of a block.
  std::int64_t layer(std::int64_t block) const {
    return layered() ? blocks_.at(static_cast<std::size_t>(block)).layer : block;
  }
  /// The first block of each slot.
  std::vector<std::int64_t> first_of_slots() const;
  /// "backbone.layers.3": the beginning of the names of the layer's tensors.
  std::string layer_text(std::int64_t layer) const;
  /// N of "backbone.layers.N"; nothing for other texts.
  std::optional<std::int64_t> find_layer(std::string_view text) const;
  /// The number of layers in the files of a model with `blocks` blocks.
  std::int64_t layers(std::int64_t blocks) const;
  /// The first block of a layer; of the next layer with a block, where the layer has
  /// none; behind all layers the number of blocks.
  std::int64_t first_block(std::int64_t layer) const;
  bool operator==(const ModelNames&) const = default;

 private:
  LayerSlot place_of(const TensorName& name) const;
  std::string_view layer_prefix() const;
  std::string spell(const TensorName& name, const LayerSlot& place, std::string_view number) const;
  const NameTable* table_;
  std::vector<LayerSlot> blocks_;  // empty: each block is a layer
  std::int64_t layers_ = 0;        // at least, of the files
};

}  // namespace nemocube
