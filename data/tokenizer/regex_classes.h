#pragma once
#include <string>

namespace nemocube::tok {

/// Contents of PCRE2 classes (without brackets) for the Unicode property White_Space, its complement, and
/// Word as Unicode's report on regular expressions defines it.
extern const std::string white_space_class;
extern const std::string not_white_space_class;
extern const std::string word_class;

/// What PCRE2 calls a property. `key`: the name in lower case without separators; a name that is no general
/// category and no known property is taken for a script, and refused by the compiler if it is none.
std::string pcre2_property(const std::string& key, const std::string& name);

}  // namespace nemocube::tok
