#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/metrics/pattern.h"

#include <pcre2.h>

#include "core/error.h"

namespace nemocube {

Pattern::Pattern(std::string_view expression) {
  int error = 0;
  PCRE2_SIZE at = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                            PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr),
              [](const pcre2_code* code) { pcre2_code_free(const_cast<pcre2_code*>(code)); });
  expect(code_ != nullptr, "expression '", expression, "': PCRE2 error ", error, " at ", at);
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
