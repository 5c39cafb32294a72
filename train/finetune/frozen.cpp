#include "train/finetune/frozen.h"

#include <algorithm>

#include "core/quote.h"
#include "train/finetune/module_pattern.h"

namespace nemocube {
namespace {

bool fits_tensor_or_module(const ModulePattern& pattern, std::string_view tensor) {
  for (std::size_t end = tensor.size(); end != tensor.npos && end > 0; end = tensor.rfind('.', end - 1))
    if (pattern.fits(tensor.substr(0, end))) return true;
  return false;
}

/// The modules whose names have the most of the pattern's words, at most three.
std::string near_names(const std::vector<TensorSpec>& specs, std::string_view pattern) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : cat(pattern, ".")) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      word += c;
      continue;
    }
    if (word.size() > 1) words.push_back(word);
    word.clear();
  }
  std::vector<std::pair<std::int64_t, std::string>> best;
  for (const TensorSpec& spec : specs) {
    const std::int64_t common = std::ranges::count_if(
        words, [&](const std::string& w) { return spec.module.find(w) != spec.module.npos; });
    if (std::ranges::find(best, spec.module, &std::pair<std::int64_t, std::string>::second) == best.end())
      best.emplace_back(-common, spec.module);
  }
  std::ranges::stable_sort(best, {}, &std::pair<std::int64_t, std::string>::first);
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, best.size()); ++i)
    text += cat(i > 0 ? ", " : "", best[i].second);
  return text;
}

}  // namespace

FrozenTensors frozen_tensors(const NemotronHConfig& config, const std::vector<std::string>& patterns) {
  const std::vector<TensorSpec> specs = tensor_specs(config);
  FrozenTensors frozen;
  for (const std::string& text : patterns) {
    const ModulePattern pattern("freeze", text);
    FrozenTensors::Line& line = frozen.lines.emplace_back(FrozenTensors::Line{.pattern = text});
    for (const TensorSpec& spec : specs) {
      if (spec.buffer || !fits_tensor_or_module(pattern, spec.name)) continue;
      ++line.tensors;
      line.parameters += spec.shape.numel();
      frozen.names.insert(spec.name);
    }
    require(line.tensors > 0, "freeze: ", quote(text),
            " fits no module of this model; there are: ", near_names(specs, text),
            ", and others (nemocube inspect --model lists all tensors)");
  }
  require(std::ranges::any_of(
              specs, [&](const TensorSpec& s) { return !s.buffer && !frozen.names.contains(s.name); }),
          "freeze: the patterns fit every module, and nothing is left to train");
  return frozen;
}

}  // namespace nemocube
