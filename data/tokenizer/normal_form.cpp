#include "data/tokenizer/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"

namespace nemocube::tok {
namespace {

constexpr std::size_t longest_decomposition = 32;  // that of U+FDFA has 18 characters
constexpr utf8proc_int32_t first_that_composes = 0x300;

struct Character {
  utf8proc_int32_t value = 0;
  int combining_class = 0;
  std::size_t replaces = 0;  // characters of the source
};

bool is_composed(NormalForm form) { return form == NormalForm::nfc || form == NormalForm::nfkc; }
bool is_compatible(NormalForm form) { return form == NormalForm::nfkc || form == NormalForm::nfkd; }

/// Whether no character of `text` is one that the form changes, or that joins the one before it. Only the
/// lead bytes are looked at.
bool is_plain(NormalForm form, std::string_view text) {
  const int lead = is_compatible(form) ? 0xC2 : is_composed(form) ? 0xCC : 0xC3;  // U+0080, U+0300, U+00C0
  return std::ranges::none_of(text, [&](char byte) { return static_cast<unsigned char>(byte) >= lead; });
}

std::vector<Character> decomposed(NormalForm form, std::string_view text) {
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (is_compatible(form) ? UTF8PROC_COMPAT : 0);
  std::vector<Character> out;
  out.reserve(text.size());
  std::size_t marks = 0;  // where the last run of marks begins
  const auto sort_marks = [&] {
    std::stable_sort(
        out.begin() + static_cast<std::ptrdiff_t>(marks), out.end(),
        [](const Character& a, const Character& b) { return a.combining_class < b.combining_class; });
  };
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    pos += step.length;
    std::array<utf8proc_int32_t, longest_decomposition> parts{};
    int boundary_class = 0;  // of grapheme clusters, not asked for
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.character), parts.data(), parts.size(),
                                static_cast<utf8proc_option_t>(options), &boundary_class);
    expect(count > 0 && count <= static_cast<std::ptrdiff_t>(parts.size()),
           "utf8proc cannot decompose a character");
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      const utf8proc_int32_t part = parts[static_cast<std::size_t>(i)];
      const int combining_class = utf8proc_get_property(part)->combining_class;
      if (combining_class == 0) sort_marks();
      out.push_back({part, combining_class, i == 0 ? std::size_t{1} : 0});
      if (combining_class == 0) marks = out.size();
    }
  }
  sort_marks();
  return out;
}

/// Joins `second` to `first` where the two have a canonical composition.
bool compose(Character& first, const Character& second) {
  if (second.value < first_that_composes) return false;
  std::array<utf8proc_int32_t, 2> pair = {first.value, second.value};
  const int options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
  if (utf8proc_normalize_utf32(pair.data(), 2, static_cast<utf8proc_option_t>(options)) != 1) return false;
  first.value = pair[0];
  first.replaces += second.replaces;
  return true;
}

std::vector<Character> composed(const std::vector<Character>& decomposition) {
  std::vector<Character> out;
  out.reserve(decomposition.size());
  std::size_t starters = 0;  // 1 + the index of the last character of class 0
  for (const Character& character : decomposition) {
    // A mark reaches the starter past marks of lower classes only.
    const bool reaches =
        starters > 0 && (starters == out.size() || out.back().combining_class < character.combining_class);
    if (reaches && compose(out[starters - 1], character)) continue;
    out.push_back(character);
    if (character.combining_class == 0) starters = out.size();
  }
  return out;
}

}  // namespace

void normalize(NormalForm form, AlignedText& text) {
  if (is_plain(form, text.view())) return;
  std::vector<Character> characters = decomposed(form, text.view());
  if (is_composed(form)) characters = composed(characters);
  std::vector<AlignedText::Character> changed;
  changed.reserve(characters.size());
  std::string same;
  same.reserve(text.view().size());
  for (const Character& character : characters) {
    changed.push_back({static_cast<char32_t>(character.value), character.replaces});
    append_utf8(same, changed.back().value);
  }
  if (same != text.view()) text.rebuild(changed);
}

}  // namespace nemocube::tok
