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

}  // namespace

constinit const NameTable usual_names(usual_rows, usual_stacks);

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
TensorName final_norm_name() { return {NamePart::tail, 0, "norm"}; }
TensorName head_name() { return {NamePart::tail, 0, "head"}; }

std::string NameTable::spell(const TensorName& name, std::string_view number) const {
  for (const NameRow& row : rows_) {
    if (row.part != name.part) continue;
    const auto rest = below(row.member, name.member);
    if (!rest) continue;
    std::string text(row.text);
    if (const std::size_t mark = text.find(number_mark); mark != text.npos)
      text.replace(mark, number_mark.size(), number);
    return joined(text, *rest);
  }
  fail("a table of names has no row for member '", name.member, "' of part ", static_cast<int>(name.part));
}

std::string NameTable::text(const TensorName& name) const { return spell(name, std::to_string(name.block)); }
std::string NameTable::pattern(const TensorName& name) const { return spell(name, "*"); }

std::optional<TensorName> NameTable::find(std::string_view text) const {
  for (const NameRow& row : rows_) {
    TensorName name{row.part, 0, ""};
    const std::size_t mark = row.text.find(number_mark);
    std::optional<std::string_view> rest;
    if (mark == row.text.npos) {
      rest = below(row.text, text);
    } else if (const std::string_view front = row.text.substr(0, mark); text.starts_with(front)) {
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data() + mark, end, name.block);
      if (error != std::errc() || name.block < 0) continue;
      const std::string_view after(stop, static_cast<std::size_t>(end - stop)),
          back = row.text.substr(mark + number_mark.size());
      if (after.starts_with(back)) rest = below(after.substr(back.size()));
    }
    if (!rest) continue;
    name.member = joined(row.member, *rest);
    return name;
  }
  return std::nullopt;
}

bool NameTable::is_stack(std::string_view text) const {
  const std::optional<TensorName> name = find(text);
  return name && name->in_mixer() && std::ranges::find(stacks_, name->member) != stacks_.end();
}

}  // namespace nemocube
