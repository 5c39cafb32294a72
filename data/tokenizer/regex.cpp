#include "data/tokenizer/regex.h"

#include "core/error.h"
#include "core/utf8.h"
#include "data/tokenizer/regex_syntax.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace nemocube::tok {
namespace {

constexpr std::size_t jit_stack_start = 64 * 1024;
constexpr std::size_t jit_stack_limit = 64 * 1024 * 1024;
constexpr std::uint32_t match_limit = 1'000'000'000;

/// The memory that PCRE2 writes to while matching, one for each thread.
struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(jit_stack_start, jit_stack_limit, nullptr);

  Scratch() {
    expect(data != nullptr && context != nullptr, "no memory for regular expressions");
    pcre2_set_match_limit(context, match_limit);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

Scratch& scratch() {
  thread_local Scratch instance;
  return instance;
}

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

Regex::Regex(std::string_view pcre2_pattern, std::string_view shown, unsigned options) : shown_(shown) {
  const std::shared_ptr<pcre2_compile_context> context(pcre2_compile_context_create(nullptr),
                                                       pcre2_compile_context_free);
  expect(context != nullptr, "no memory for regular expressions");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(units(pcre2_pattern), pcre2_pattern.size(), options, &error, &offset, context.get());
  require(code != nullptr, "the expression \"", shown_, "\" is not supported: ", message_of(error));
  jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::shared_ptr<const pcre2_code>(
      code, [](const pcre2_code* c) { pcre2_code_free(const_cast<pcre2_code*>(c)); });
}

Regex Regex::oniguruma(std::string_view pattern) {
  return Regex(to_pcre2(pattern), pattern, PCRE2_UTF | PCRE2_MULTILINE);
}

Regex Regex::literal(std::string_view text) { return Regex(text, text, PCRE2_UTF | PCRE2_LITERAL); }

/// Matches without PCRE2's machine code: slower, but memory for backtracking comes from the heap.
int Regex::interpret(std::string_view text, std::size_t from, Range& found) const {
  Scratch& s = scratch();
  const int rc = pcre2_match(code_.get(), units(text), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                             s.data, s.context);
  if (rc >= 0) {
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(s.data);
    found = {bounds[0], bounds[1]};
  }
  return rc;
}

std::optional<Range> Regex::find(std::string_view text, std::size_t from) const {
  if (text.data() == nullptr) text = "";
  Range found;
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (jit_) {
    Scratch& s = scratch();
    rc = pcre2_jit_match(code_.get(), units(text), text.size(), from, 0, s.data, s.context);
    if (rc >= 0) {
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(s.data);
      found = {bounds[0], bounds[1]};
    }
  }
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = interpret(text, from, found);
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) {
    fail("the expression \"", shown_, "\" gives up at byte ", from, " of a text of ", text.size(),
         " bytes: ", message_of(rc));
  }
  return found;
}

std::vector<Regex::Stretch> Regex::tile(std::string_view text) const {
  std::vector<Stretch> out;
  std::size_t covered = 0;  // also the end of the last match
  bool any = false;
  std::size_t from = 0;
  while (from <= text.size()) {
    const std::optional<Range> match = find(text, from);
    if (!match) break;
    if (match->begin == match->end && any && match->end == covered) {
      if (from >= text.size()) break;
      from += utf8_step(text, from).length;
      continue;
    }
    if (covered != match->begin) out.push_back({{covered, match->begin}, false});
    out.push_back({*match, true});
    covered = from = match->end;
    any = true;
  }
  if (covered != text.size()) out.push_back({{covered, text.size()}, false});
  return out;
}

}  // namespace nemocube::tok
