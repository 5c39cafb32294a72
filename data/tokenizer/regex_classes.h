#pragma once
#include <string>

namespace nemocube::tok {

/// Contents of PCRE2 classes (without brackets) for the Unicode property White_Space, its complement, and
/// Word as Unicode's report on regular expressions defines it.
extern const std::string white_space_class;
extern const std::string not_white_space_class;
extern const std::string word_class;

/// The name that PCRE2 has for a property. `key` is the name in lower case without separators. A name that is
/// neither a general category nor a known property counts as a script; PCRE2 refuses it where there is no
/// such script.
std::string pcre2_property(const std::string& key, const std::string& name);

}  // namespace nemocube::tok
