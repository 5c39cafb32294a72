#include "model/tensor_name.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.h"

namespace nemocube {
namespace {

constexpr std::string_view number_mark = "{}", weight_ending = ".weight";

/// `text` without the dot that it begins with; nothing where it begins with something else.
std::optional<std::string_view> below(std::string_view text) {
  if (text.empty()) return text;
  return text[0] == '.' ? std::optional(text.substr(1)) : std::nullopt;
}

/// What is below `module` in `text`.
std::optional<std::string_view> below(std::string_view module, std::string_view text) {
  if (module.empty()) return text;
  return text.starts_with(module) ? below(text.substr(module.size())) : std::nullopt;
}

std::string joined(std::string_view a, std::string_view b) {
  return a.empty() ? std::string(b) : b.empty() ? std::string(a) : cat(a, ".", b);
}

constexpr std::array usual_rows{
    NameRow{NamePart::front, "embeddings", "backbone.embeddings"},
    NameRow{NamePart::mixer, "", "backbone.layers.{}.mixer"},
    NameRow{NamePart::block, "", "backbone.layers.{}"},
    NameRow{NamePart::tail, "norm", "backbone.norm_f"},
    NameRow{NamePart::tail, "head", "lm_head"},
    NameRow{NamePart::depth_mixer, "", "mtp.layers.{}.mixer"},
    NameRow{NamePart::depth, "", "mtp.layers.{}"},
};

constexpr std::array<std::string_view, 2> usual_stacks{"experts.up_proj", "experts.down_proj"};

constexpr std::array usual_aliases{
    NameAlias{"backbone.embedding", "backbone.embeddings"},
    NameAlias{"model.embedding", "backbone.embeddings"},
    NameAlias{"embedding", "backbone.embeddings"},
    NameAlias{"embeddings", "backbone.embeddings"},
    NameAlias{"layers", "backbone.layers"},
    NameAlias{"norm_f", "backbone.norm_f"},
    NameAlias{"model", "backbone"},
};

}  // namespace

constinit const NameTable usual_names{
    .rows = usual_rows, .stacks = usual_stacks, .aliases = usual_aliases, .body = "backbone"};

TensorName TensorName::operator/(std::string_view inner) const {
  return {part, block, joined(member, inner)};
}

TensorName TensorName::module() const {
  const bool weight = member.ends_with(weight_ending);
  return {part, block, weight ? member.substr(0, member.size() - weight_ending.size()) : member};
}

TensorName TensorName::around() const {
  const std::size_t dot = member.rfind('.');
  return {part, block, dot == member.npos ? "" : member.substr(0, dot)};
}

std::optional<std::int64_t> TensorName::block_of_model() const {
  return part == NamePart::block || part == NamePart::mixer ? std::optional(block) : std::nullopt;
}

TensorName mixer_of(const TensorName& block) {
  expect(block.part == NamePart::block || block.part == NamePart::depth, "the mixer of what is no block");
  return {block.in_depth() ? NamePart::depth_mixer : NamePart::mixer, block.block, ""};
}

TensorName embeddings_name() { return {NamePart::front, 0, "embeddings"}; }
TensorName per_layer_embeddings_name() { return {NamePart::front, 0, "embed_tokens_per_layer"}; }
TensorName per_layer_model_projection_name() { return {NamePart::front, 0, "per_layer_model_projection"}; }
TensorName per_layer_projection_norm_name() { return {NamePart::front, 0, "per_layer_projection_norm"}; }
TensorName final_norm_name() { return {NamePart::tail, 0, "norm"}; }
TensorName head_name() { return {NamePart::tail, 0, "head"}; }

namespace {

/// What a text says of a name: of a block or mixer, TensorName::block is the number of the layer.
struct Spelled {
  TensorName name;
  int slot;
};

std::optional<Spelled> parse(const NameRow& row, std::string_view text) {
  TensorName name{row.part, 0, ""};
  const std::size_t mark = row.text.find(number_mark);
  std::optional<std::string_view> rest;
  if (mark == row.text.npos) {
    rest = below(row.text, text);
  } else if (const std::string_view front = row.text.substr(0, mark); text.starts_with(front)) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + mark, end, name.block);
    if (error != std::errc() || name.block < 0) return std::nullopt;
    const std::string_view after(stop, static_cast<std::size_t>(end - stop)),
        back = row.text.substr(mark + number_mark.size());
    if (after.starts_with(back)) rest = below(after.substr(back.size()));
  }
  if (!rest) return std::nullopt;
  name.member = joined(row.member, *rest);
  return Spelled{std::move(name), row.slot};
}

}  // namespace

bool NameTable::is_stack(std::string_view text) const {
  for (const NameRow& row : rows)
    if (const std::optional<Spelled> found = parse(row, text))
      return found->name.in_mixer() && std::ranges::find(stacks, found->name.member) != stacks.end();
  return false;
}

bool NameTable::knows(std::string_view text) const {
  return std::ranges::any_of(rows, [&](const NameRow& row) { return parse(row, text).has_value(); });
}

std::optional<std::string> NameTable::unread_without(std::string_view text) const {
  for (const UnreadRow& row : unread) {
    const std::optional<Spelled> found = parse({NamePart::block, "", row.text}, text);
    if (!found) continue;
    std::string weight(row.without);
    weight.replace(weight.find(number_mark), number_mark.size(), std::to_string(found->name.block));
    return weight.append(weight_ending);
  }
  return std::nullopt;
}

std::string NameTable::canonical(std::string_view text) const {
  for (const NameAlias& alias : aliases)
    if (const auto rest = below(alias.spelled, text)) return joined(alias.meant, *rest);
  return std::string(text);
}

std::string NameTable::class_name(std::string_view canonical) const {
  const auto rest = below(body, canonical);
  return rest ? joined(class_body, *rest) : std::string(canonical);
}

LayerSlot ModelNames::place_of(const TensorName& name) const {
  if (blocks_.empty() || !name.block_of_model()) return {name.block, 0};
  require(name.block < std::ssize(blocks_), "the name of block ", name.block, " of a model with ",
          blocks_.size(), " blocks");
  return blocks_[static_cast<std::size_t>(name.block)];
}

std::string ModelNames::spell(const TensorName& name, const LayerSlot& place, std::string_view number) const {
  for (const NameRow& row : table_->rows) {
    if (row.part != name.part || row.slot != place.slot) continue;
    const auto rest = below(row.member, name.member);
    if (!rest) continue;
    std::string text(row.text);
    if (const std::size_t mark = text.find(number_mark); mark != text.npos)
      text.replace(mark, number_mark.size(), number);
    return joined(text, *rest);
  }
  fail("a table of names has no row for member '", name.member, "' of part ", static_cast<int>(name.part));
}

std::string ModelNames::text(const TensorName& name) const {
  const LayerSlot place = place_of(name);
  return spell(name, place, std::to_string(place.layer));
}
std::string ModelNames::pattern(const TensorName& name) const { return spell(name, place_of(name), "*"); }

std::optional<TensorName> ModelNames::find(std::string_view text) const {
  for (const NameRow& row : table_->rows) {
    std::optional<Spelled> found = parse(row, text);
    if (!found) continue;
    TensorName& name = found->name;
    if (blocks_.empty() || !name.block_of_model()) return name;
    const LayerSlot place{name.block, found->slot};
    const auto block = std::ranges::lower_bound(blocks_, place);
    if (block == blocks_.end() || *block != place) continue;
    name.block = block - blocks_.begin();
    return name;
  }
  return std::nullopt;
}

std::string_view ModelNames::layer_prefix() const {
  for (const NameRow& row : table_->rows)
    if (const std::size_t mark = row.text.find(number_mark);
        row.part == NamePart::block && mark != row.text.npos)
      return row.text.substr(0, mark);
  fail("a table of names has no row for blocks");
}

std::string ModelNames::layer_text(std::int64_t layer) const { return cat(layer_prefix(), layer); }

std::optional<std::int64_t> ModelNames::find_layer(std::string_view text) const {
  const std::string_view prefix = layer_prefix();
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size() && number >= 0 ? std::optional(number)
                                                                                  : std::nullopt;
}

std::vector<std::int64_t> ModelNames::first_of_slots() const {
  if (blocks_.empty()) return {0};
  std::vector<std::int64_t> first;
  std::vector<int> slots;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (std::ranges::find(slots, blocks_[i].slot) != slots.end()) continue;
    slots.push_back(blocks_[i].slot);
    first.push_back(static_cast<std::int64_t>(i));
  }
  return first;
}

std::int64_t ModelNames::layers(std::int64_t blocks) const {
  return blocks_.empty() ? blocks : std::max(layers_, blocks_.back().layer + 1);
}

std::int64_t ModelNames::first_block(std::int64_t layer) const {
  if (blocks_.empty()) return layer;
  return std::ranges::lower_bound(blocks_, layer, {}, &LayerSlot::layer) - blocks_.begin();
}

}  // namespace nemocube
