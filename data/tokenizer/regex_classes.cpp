#include "data/tokenizer/regex_classes.h"

#include <map>

namespace nemocube::tok {

const std::string white_space_class =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
const std::string word_class = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

const std::string not_white_space_class =
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"
    "\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}";

namespace {

const std::map<std::string, std::string>& known_properties() {
  static const std::map<std::string, std::string> table = [] {
    std::map<std::string, std::string> out = {{"any", "Any"},
                                              {"letter", "L"},
                                              {"uppercaseletter", "Lu"},
                                              {"lowercaseletter", "Ll"},
                                              {"titlecaseletter", "Lt"},
                                              {"modifierletter", "Lm"},
                                              {"otherletter", "Lo"},
                                              {"mark", "M"},
                                              {"nonspacingmark", "Mn"},
                                              {"spacingmark", "Mc"},
                                              {"enclosingmark", "Me"},
                                              {"number", "N"},
                                              {"decimalnumber", "Nd"},
                                              {"letternumber", "Nl"},
                                              {"othernumber", "No"},
                                              {"digit", "Nd"},
                                              {"punctuation", "P"},
                                              {"symbol", "S"},
                                              {"separator", "Z"},
                                              {"other", "C"},
                                              {"alpha", "Alphabetic"},
                                              {"alphabetic", "Alphabetic"},
                                              {"upper", "Uppercase"},
                                              {"uppercase", "Uppercase"},
                                              {"lower", "Lowercase"},
                                              {"lowercase", "Lowercase"},
                                              {"emoji", "Emoji"},
                                              {"extendedpictographic", "Extended_Pictographic"}};
    for (const char* name : {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
                             "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
                             "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co"}) {
      std::string key(name);
      for (char& c : key) c = static_cast<char>(c | 0x20);
      out[key] = name;
    }
    return out;
  }();
  return table;
}

}  // namespace

std::string pcre2_property(const std::string& key, const std::string& name) {
  const auto known = known_properties().find(key);
  return known != known_properties().end() ? known->second : "sc:" + name;
}

}  // namespace nemocube::tok
