#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/text/pattern.h"

#include <pcre2.h>

#include "core/error.h"

namespace nemocube {

Pattern::Pattern(std::string_view expression) {
  int error = 0;
  PCRE2_SIZE at = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                            PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr),
              [](const pcre2_code* code) { pcre2_code_free(const_cast<pcre2_code*>(code)); });
  if (code_) return;
  std::string reason(120, '\0');
  const int length =
      pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(reason.data()), reason.size());
  reason.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  fail(reason, " at character ", at, " of '", expression, "'");
}

bool Pattern::found_in(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), pcre2_match_data_free);
  return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, match.get(),
                     nullptr) >= 0;
}

std::string Pattern::replace_all(std::string_view text, std::string_view by) const {
  std::string out(text.size() + by.size() + 1, '\0');
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  constexpr std::uint32_t options =
      PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_LITERAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH;
  for (;;) {
    PCRE2_SIZE size = out.size();
    const int found = pcre2_substitute(code_.get(), subject, text.size(), 0, options, nullptr, nullptr,
                                       reinterpret_cast<PCRE2_SPTR>(by.data()), by.size(),
                                       reinterpret_cast<PCRE2_UCHAR*>(out.data()), &size);
    if (found == PCRE2_ERROR_NOMEMORY && size > out.size()) {
      out.resize(size);
      continue;
    }
    expect(found >= 0, "PCRE2 error ", found, " while replacing");
    out.resize(size);
    return out;
  }
}

}  // namespace nemocube
