#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/chat/jinja/value.h"

namespace nemocube::jinja {

/// The text of a template, for messages about places in it.
class Source {
 public:
  /// Brings line ends to \n and drops one at the very end, as Jinja does. Throws Error where the text is not
  /// UTF-8 or too long.
  Source(std::string name, std::string_view text);

  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }
  /// "NAME, line 3, column 14" (in code points, from 1)
  std::string place(std::size_t offset) const;

  template <class... Parts>
  [[noreturn]] void fail(std::size_t offset, const Parts&... parts) const {
    nemocube::fail(place(offset), ": ", parts...);
  }

 private:
  std::string name_, text_;
};

enum class TokenKind {
  data,             // text outside of tags
  output_begin,     // {{
  output_end,       // }}
  statement_begin,  // {%
  statement_end,    // %}
  name,
  text,
  integer,
  real,
  symbol,  // operators and brackets
  end      // of the template
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::size_t offset = 0;  ///< in the source
  std::string text;        ///< of data, names, symbols; the value of a text
  Value number;            ///< of an integer or float

  bool is(TokenKind wanted) const { return kind == wanted; }
  bool is_symbol(std::string_view symbol) const { return kind == TokenKind::symbol && text == symbol; }
  bool is_name(std::string_view name) const { return kind == TokenKind::name && text == name; }
};

/// Tokens of a template with trim_blocks and lstrip_blocks, as transformers renders it. The last is `end`.
/// Throws Error naming the place.
std::vector<Token> tokenize(const Source& source);

/// A token as messages show it.
std::string shown(const Token& token);

}  // namespace nemocube::jinja
