#include "train/finetune/module_pattern.h"

#include "core/error.h"
#include "core/quote.h"

namespace nemocube {
namespace {

std::string expression_of(std::string_view text) {
  std::string expression = "^(?:";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '*' && (i == 0 || text[i - 1] != '.')) expression += '.';
    expression += text[i];
  }
  return expression + ")\\z";
}

Pattern compile(const std::string& key, const std::string& text) {
  try {
    return Pattern(expression_of(text));
  } catch (const Error& error) {
    fail(key, ": ", quote(text), " is no pattern of module names: ", error.what());
  }
}

}  // namespace

ModulePattern::ModulePattern(const std::string& key, std::string text)
    : text_(std::move(text)), whole_(compile(key, text_)) {}

bool ModulePattern::fits(std::string_view name, const ModelNames& names) const {
  if (name == text_ || whole_.found_in(name)) return true;
  const std::string other = names.table().class_name(name);
  return other != name && (other == text_ || whole_.found_in(other));
}

}  // namespace nemocube
