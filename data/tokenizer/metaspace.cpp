#include "data/tokenizer/metaspace.h"

#include <utility>

#include "core/utf8.h"

namespace nemocube::tok {
namespace {

Metaspace::PrependScheme scheme_of(const JsonRef& name) {
  if (name.string() == "always") return Metaspace::PrependScheme::always;
  if (name.string() == "first") return Metaspace::PrependScheme::first;
  if (name.string() == "never") return Metaspace::PrependScheme::never;
  name.fail("is \"", name.string(), "\" (known: always, first, never)");
}

}  // namespace

Metaspace Metaspace::load(const JsonRef& spec) {
  Metaspace out;
  out.replacement = spec.at("replacement").string();
  if (out.replacement.empty() || utf8_step(out.replacement, 0).length != out.replacement.size())
    spec.fail("must have one character as replacement, found \"", out.replacement, "\"");
  if (const auto scheme = spec.find("prepend_scheme")) out.prepend_scheme = scheme_of(*scheme);
  if (!spec.boolean_or("add_prefix_space", true) && out.prepend_scheme != PrependScheme::never)
    spec.fail("has add_prefix_space: false, which only goes with prepend_scheme \"never\"");
  out.split = spec.boolean_or("split", true);
  return out;
}

void Metaspace::apply(AlignedText& text, std::vector<Range>& pieces) const {
  const std::string_view old = text.view();
  std::vector<AlignedText::Part> parts;
  std::vector<Range> out;
  std::size_t size = 0;  // of the new text
  const auto replace = [&](Range range, bool begins) {
    if (begins) out.push_back({size, size});
    parts.push_back({range, replacement, true});
    size += replacement.size();
  };
  for (const Range piece : pieces) {
    const std::string_view view = old.substr(piece.begin, piece.end - piece.begin);
    const bool prepends =
        prepend_scheme == PrependScheme::always ||
        (prepend_scheme == PrependScheme::first && text.original({piece.begin, piece.begin + 1}).begin == 0);
    bool begins = true;
    if (prepends && view[0] != ' ' && !view.starts_with(replacement)) {
      replace({piece.begin, piece.begin}, begins);
      begins = false;
    }
    for (std::size_t at = piece.begin; at < piece.end;) {
      const bool is_space = old[at] == ' ';
      if (is_space || old.substr(at, piece.end - at).starts_with(replacement)) {
        const std::size_t length = is_space ? 1 : replacement.size();
        replace({at, at + length}, begins || split);
        at += length;
      } else {
        const std::size_t from = at;
        while (at < piece.end && old[at] != ' ' && !old.substr(at, piece.end - at).starts_with(replacement))
          ++at;
        if (begins) out.push_back({size, size});
        parts.push_back({{from, at}, {}, false});
        size += at - from;
      }
      out.back().end = size;
      begins = false;
    }
  }
  text.rebuild(parts);
  pieces = std::move(out);
}

}  // namespace nemocube::tok
