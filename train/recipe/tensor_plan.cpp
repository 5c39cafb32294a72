#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/quote.h"
#include "data/hf/families/family.h"
#include "parallel/tensor_parallel/words.h"
#include "train/recipe/types.h"

namespace nemocube::recipe {
namespace {

void check_words(const Place& section, const TensorPlanSection& plan) {
  std::vector<std::string> known;
  for (const TensorPlanWord& word : tensor_plan_words()) known.emplace_back(word.word);
  for (const auto& [pattern, word] : plan.rules)
    require(find_tensor_plan_word(word) || is_skipped_in_tensor_plans(word), section.where, ".", pattern,
            ": unknown word ", quote(word), "; the nearest known word is ", quote(nearest(word, known)),
            ", known: ", joined(known));
}

Value read_plan_file(const Place& at, const std::string& file) {
  try {
    return read_yaml(file);  // JSON is YAML
  } catch (const Error& error) {
    fail(at.where, ": ", error.what());
  }
}

}  // namespace

void read(const Place& at, TensorPlanSection& out, Range range) {
  out = {};
  if (at.value.kind == Value::Kind::map || is_null(at)) {
    read(at, out.rules, range);
    return check_words(at, out);
  }
  if (at.value.kind == Value::Kind::list) wrong(at, show(out, range).wish);
  std::string text;
  read(at, text, range);
  const std::vector<std::string> names = tp_plan_names();
  if (std::ranges::find(names, text) != names.end()) {
    out.name = text;
    return;
  }
  if (!std::filesystem::is_regular_file(text))
    fail(at.where, ": ", quote(text), " is neither a plan nor a file; the nearest plan is ",
         quote(nearest(text, names)), "; want a section of patterns, one of ", joined(names),
         ", or a file in YAML or JSON");
  const Value section = read_plan_file(at, text);
  const Place place{section, at.path, cat(at.where, ": ", excerpt(text))};
  read(place, out.rules, range);
  require(!out.rules.empty(), place.where, ": want patterns with their words, found none");
  check_words(place, out);
  out.file = text;
}

Shown show(const TensorPlanSection& value, Range range) {
  const Shown section = show(value.rules, range);
  return {section.wish + "; or the name of a plan or of a file",
          value.name.empty() ? section.text : text_of(value.name)};
}

}  // namespace nemocube::recipe
