#include "data/tokenizer/text.h"

#include <utility>

#include "core/utf8.h"

namespace nemocube::tok {

Range AlignedText::original(Range range) const {
  if (!changed_) return {base_ + range.begin, base_ + range.end};
  if (origin_.empty()) return {base_, base_};
  if (range.begin == range.end) {
    const std::size_t at = range.begin < origin_.size() ? origin_[range.begin].begin : origin_.back().end;
    return {at, at};
  }
  return {origin_[range.begin].begin, origin_[range.end - 1].end};
}

AlignedText AlignedText::slice(Range range) const {
  AlignedText out;
  out.changed_ = changed_;
  const std::size_t size = range.end - range.begin;
  if (changed_) {
    out.base_ = original({range.begin, range.begin}).begin;
    out.own_ = own_.substr(range.begin, size);
    out.origin_.assign(origin_.begin() + static_cast<std::ptrdiff_t>(range.begin),
                       origin_.begin() + static_cast<std::ptrdiff_t>(range.end));
  } else {
    out.base_ = base_ + range.begin;
    out.source_ = source_.substr(range.begin, size);
  }
  return out;
}

void AlignedText::rebuild(const std::vector<Part>& parts) {
  std::string text;
  std::vector<Range> origin;
  for (const Part& part : parts) {
    if (part.is_new) {
      const Range from = original(part.kept);
      text.append(part.replaced);
      origin.insert(origin.end(), part.replaced.size(), from);
    } else {
      text.append(view().substr(part.kept.begin, part.kept.end - part.kept.begin));
      for (std::size_t i = part.kept.begin; i < part.kept.end; ++i) origin.push_back(original({i, i + 1}));
    }
  }
  own_ = std::move(text);
  origin_ = std::move(origin);
  changed_ = true;
}

void AlignedText::rebuild(const std::vector<Character>& characters) {
  const std::string_view old = view();
  std::string text;
  std::vector<Range> origin;
  std::size_t at = 0;
  Range from = original({0, 0});
  for (const Character& character : characters) {
    for (std::size_t i = 0; i < character.replaces; ++i) {
      const std::size_t length = utf8_step(old, at).length;
      if (i == 0) from = original({at, at + length});
      at += length;
    }
    append_utf8(text, character.value);
    origin.resize(text.size(), from);
    if (character.replaces > 1) from = original({previous_character(old, at), at});
  }
  own_ = std::move(text);
  origin_ = std::move(origin);
  changed_ = true;
}

}  // namespace nemocube::tok
