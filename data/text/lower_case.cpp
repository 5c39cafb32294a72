#include "data/text/lower_case.h"

#include "core/utf8.h"
#include "data/text/case_runs.h"
#include "data/text/pattern.h"

namespace nemocube {

namespace {

constexpr CaseRun lower_runs[] = {
#include "data/text/lower_case_table.inc"
};

// The condition Final_Sigma of the Unicode standard: a cased letter comes before, and none after.
// Case-ignorable characters are skipped on both sides.
constexpr std::string_view final_sigma = R"((?=\P{Case_Ignorable})\p{Cased}\p{Case_Ignorable}*\K\x{3a3})"
                                         R"((?!\p{Case_Ignorable}*(?=\P{Case_Ignorable})\p{Cased}))";

}  // namespace

char32_t to_lower(char32_t character) {
  if (character < 0x80) return character >= U'A' && character <= U'Z' ? character + (U'a' - U'A') : character;
  return in_other_case(lower_runs, character);
}

std::string to_lower(std::string_view text) {
  std::string with_final_sigma;
  if (text.find("Σ") != std::string_view::npos) {
    static const Pattern pattern(final_sigma);
    with_final_sigma = pattern.replace_all(text, "ς");
    text = with_final_sigma;
  }
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (!step.valid) {
      out.append(text.substr(i, step.length));
    } else if (step.character == U'\u0130') {
      out += "i\u0307";
    } else {
      append_utf8(out, to_lower(step.character));
    }
    i += step.length;
  }
  return out;
}

}  // namespace nemocube
