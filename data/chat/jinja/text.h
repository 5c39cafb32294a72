#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/utf8.h"
#include "data/chat/jinja/budget.h"
#include "data/chat/jinja/value.h"

/// Python's operations on texts. Texts are valid UTF-8; positions and widths count code points.
namespace nemocube::jinja {

bool is_space(char32_t character);  ///< Python's str.isspace
/// Byte at which the code point number `index` begins; the size of the text from its length on.
std::size_t byte_at(std::string_view text, std::size_t index);
std::size_t byte_at(const Text& text, std::size_t index);  ///< at once where the text is ASCII
std::size_t length_of(std::string_view text);              ///< code points

/// find() and rfind() of the standard library in time proportional to the length of `text`, whatever `part`
/// is.
std::size_t find_first(std::string_view text, std::string_view part);
std::size_t find_last(std::string_view text, std::string_view part);

/// Python's strip(), lstrip(), rstrip(): white space, or the characters of `set`.
std::string_view strip_left(std::string_view text, std::optional<std::string_view> set = std::nullopt);
std::string_view strip_right(std::string_view text, std::optional<std::string_view> set = std::nullopt);
std::string_view strip(std::string_view text, std::optional<std::string_view> set = std::nullopt);

/// Parts of a text, as many as a list may have items.
class TextParts {
 public:
  explicit TextParts(Budget& budget) : budget_(budget) {}
  void add(std::string_view part) {
    if (parts_.size() >= budget_.limits().items) budget_.spend_items(parts_.size() + 1);
    budget_.spend_memory(sizeof part);
    parts_.push_back(part);
  }
  std::size_t size() const { return parts_.size(); }
  std::vector<std::string_view> take(bool reversed);

 private:
  Budget& budget_;
  std::vector<std::string_view> parts_;
};

std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t most, bool from_right,
                                              Budget& budget);
/// pre: `separator` is not empty
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, std::int64_t most,
                                       bool from_right, Budget& budget);
/// Calls `function` with each line.
void for_each_line(std::string_view text, bool keep_ends,
                   const std::function<void(std::string_view)>& function);

std::string replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
                    Budget& budget);
std::int64_t count(std::string_view text, std::string_view part);

/// &, <, >, ' and " as MarkupSafe writes them.
std::string escape_markup(std::string_view text, Budget& budget);

/// Appends \xhh, \uhhhh or \Uhhhhhhhh, the first that has room for the code point.
void append_escape(std::string& out, char32_t character);

/// Calls `function` with each code point and its bytes.
template <class Function>
void for_each_character(std::string_view text, Function&& function) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    function(step.character, text.substr(i, step.length));
    i += step.length;
  }
}

}  // namespace nemocube::jinja
