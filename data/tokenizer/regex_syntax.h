#pragma once
#include <string>
#include <string_view>

namespace nemocube::tok {

/// Translates an expression from Oniguruma's syntax, which tokenizer.json uses, to PCRE2's (flags UTF and
/// MULTILINE). The two differ in \s, \w, \b, \v, \h, script names, `{n}?`, `{n,m}+` and `{,m}`: the
/// translation spells these out. Throws Error saying what is not supported: back references, conditions,
/// class intersections and nested classes, POSIX brackets, options other than `i`, quantified quantifiers, \G
/// \K \R \X, case-insensitive matching of non-ASCII letters, of "ss", "ff", "fi", "fl", "st" and of case
/// properties (their foldings differ).
std::string to_pcre2(std::string_view pattern);

}  // namespace nemocube::tok
