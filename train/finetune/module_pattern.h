#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/text/pattern.h"
#include "model/tensor_name.h"

namespace nemocube {

/// A pattern of module names, as NeMo AutoModel's recipes write them. A pattern is a regular expression that
/// has to fit the whole name, in which a `*` without a `.` before it stands for `.*`. So `*` crosses dots,
/// the dot of `.*` belongs to the star, and every other dot fits any character: `*.layers.1.*` fits names of
/// the layers 10 to 19 as well, and `*.lm_head` does not fit `lm_head`. A pattern that is itself a name fits
/// this name. Source: nemo_automodel/components/_peft/module_matcher.py.
class ModulePattern {
 public:
  /// `key`: of the recipe, for messages. Throws Error for a text that is no regular expression.
  ModulePattern(const std::string& key, std::string text);
  const std::string& text() const { return text_; }
  /// `name` is spelled as in the model's files; the pattern may fit this spelling, or the one of classes
  /// (NameTable::class_name).
  bool fits(std::string_view name, const ModelNames& names) const;

 private:
  std::string text_;
  Pattern whole_;
};

}  // namespace nemocube
