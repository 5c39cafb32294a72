#include "data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "core/utf8.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/normalizer.h"

namespace nemocube::tok {
namespace {

// GPT-2's expression.
const char* const byte_level_pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void prefix_with_spaces(AlignedText& text, std::vector<Range>& pieces) {
  std::vector<AlignedText::Part> parts;
  std::vector<Range> moved;
  std::size_t size = 0;
  for (const Range piece : pieces) {
    const std::size_t begin = size;
    if (text.view()[piece.begin] != ' ') {
      parts.push_back({{piece.begin, piece.begin}, " ", true});
      ++size;
    }
    parts.push_back({piece, {}, false});
    size += piece.end - piece.begin;
    moved.push_back({begin, size});
  }
  if (parts.size() == pieces.size()) return;
  text.rebuild(parts);
  pieces = std::move(moved);
}

/// Writes each byte as its character of the byte alphabet.
void spell_bytes(AlignedText& text, std::vector<Range>& pieces) {
  static const std::vector<std::string> spelled = [] {
    std::vector<std::string> out(256);
    for (std::size_t byte = 0; byte < out.size(); ++byte)
      append_utf8(out[byte], byte_to_character(static_cast<unsigned char>(byte)));
    return out;
  }();
  const std::string_view view = text.view();
  std::vector<AlignedText::Part> parts;
  std::size_t size = 0;
  for (Range& piece : pieces) {
    const std::size_t begin = size;
    for (std::size_t at = piece.begin; at < piece.end;) {
      const Range character{at, at + utf8_step(view, at).length};
      for (; at < character.end; ++at) {
        parts.push_back({character, spelled[static_cast<unsigned char>(view[at])], true});
        size += parts.back().replaced.size();
      }
    }
    piece = {begin, size};
  }
  text.rebuild(parts);
}

}  // namespace

PreTokenizer PreTokenizer::load(const std::optional<JsonRef>& spec) {
  PreTokenizer out;
  if (spec) out.add(*spec, 0);
  return out;
}

PreTokenizer::Behavior PreTokenizer::load_behavior(const JsonRef& name) {
  static const std::vector<std::pair<std::string, Behavior>> names = {
      {"Removed", Behavior::removed},
      {"Isolated", Behavior::isolated},
      {"MergedWithPrevious", Behavior::merged_with_previous},
      {"MergedWithNext", Behavior::merged_with_next},
      {"Contiguous", Behavior::contiguous}};
  for (const auto& [text, behavior] : names) {
    if (name.string() == text) return behavior;
  }
  name.fail("is \"", name.string(),
            "\" (known: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous)");
}

void PreTokenizer::add(const JsonRef& spec, int depth) {
  if (depth > deepest_sequence) spec.fail("is nested too deeply");
  const std::string_view type = spec.at("type").string();
  if (type == "Sequence") {
    for (const JsonRef& part : spec.at("pretokenizers").elements()) add(part, depth + 1);
    return;
  }
  if (byte_level_) steps_.back().spells_bytes = true;
  byte_level_ = type == "ByteLevel";
  Step step;
  if (type == "Split") {
    step.pattern = load_pattern(spec);
    step.behavior = load_behavior(spec.at("behavior"));
    step.invert = spec.at("invert").boolean();
  } else if (type == "Digits") {
    step.pattern = Regex::oniguruma("\\p{N}");
    step.behavior = spec.at("individual_digits").boolean() ? Behavior::isolated : Behavior::contiguous;
  } else if (type == "Punctuation") {
    step.pattern = Regex::oniguruma("[\\p{P}$+<=>^`|~]");
    if (const auto behavior = spec.find("behavior")) step.behavior = load_behavior(*behavior);
  } else if (type == "Metaspace") {
    step.metaspace = Metaspace::load(spec);
  } else if (type == "ByteLevel") {
    step.add_prefix_space = spec.at("add_prefix_space").boolean();
    if (spec.boolean_or("use_regex", true)) step.pattern = Regex::oniguruma(byte_level_pattern);
  } else {
    spec.fail("is of type \"", type,
              "\", which is not supported (supported: Split, Digits, Punctuation, Metaspace, ByteLevel, "
              "Sequence)");
  }
  steps_.push_back(std::move(step));
}

void PreTokenizer::apply(const Step& step, std::string_view text, Range piece, std::vector<Range>& out) {
  std::vector<Regex::Stretch> stretches =
      step.pattern->tile(text.substr(piece.begin, piece.end - piece.begin));
  const bool backwards = step.behavior == Behavior::merged_with_next;
  if (backwards) std::reverse(stretches.begin(), stretches.end());
  const std::size_t first = out.size();
  bool previous_is_match = false;
  for (const Regex::Stretch& stretch : stretches) {
    const bool is_match = stretch.is_match != step.invert;
    bool joins = false;
    switch (step.behavior) {
      case Behavior::removed:
        if (is_match) continue;
        break;
      case Behavior::isolated:
        break;
      case Behavior::contiguous:
        joins = is_match == previous_is_match;
        break;
      case Behavior::merged_with_previous:
      case Behavior::merged_with_next:
        joins = is_match && !previous_is_match;
        break;
    }
    previous_is_match = is_match;
    const Range range{piece.begin + stretch.range.begin, piece.begin + stretch.range.end};
    if (!joins || out.size() == first) {
      out.push_back(range);
    } else if (backwards) {
      out.back().begin = range.begin;
    } else {
      out.back().end = range.end;
    }
  }
  const auto start = out.begin() + static_cast<std::ptrdiff_t>(first);
  if (backwards) std::reverse(start, out.end());
  out.erase(std::remove_if(start, out.end(), [](Range r) { return r.begin == r.end; }), out.end());
}

std::vector<Range> PreTokenizer::split(AlignedText& text) const {
  std::vector<Range> pieces;
  if (!text.view().empty()) pieces.push_back({0, text.view().size()});
  for (const Step& step : steps_) {
    if (step.metaspace) step.metaspace->apply(text, pieces);
    if (step.add_prefix_space) prefix_with_spaces(text, pieces);
    if (step.pattern) {
      std::vector<Range> smaller;
      smaller.reserve(pieces.size());
      for (const Range piece : pieces) apply(step, text.view(), piece, smaller);
      pieces = std::move(smaller);
    }
    if (step.spells_bytes) spell_bytes(text, pieces);
  }
  return pieces;
}

}  // namespace nemocube::tok
