#include "train/finetune/near_names.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "core/error.h"

namespace nemocube {
namespace {

std::vector<std::string> words_in(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : cat(text, ".")) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      word += c;
      continue;
    }
    if (word.size() > 1) words.push_back(word);
    word.clear();
  }
  return words;
}

}  // namespace

std::string near_names(std::span<const std::string> names, std::string_view wanted) {
  const std::vector<std::string> words = words_in(wanted);
  std::vector<std::pair<std::int64_t, std::string>> best;
  for (const std::string& name : names) {
    const std::int64_t common =
        std::ranges::count_if(words, [&](const std::string& w) { return name.find(w) != name.npos; });
    if (std::ranges::find(best, name, &std::pair<std::int64_t, std::string>::second) == best.end())
      best.emplace_back(-common, name);
  }
  std::ranges::stable_sort(best, {}, &std::pair<std::int64_t, std::string>::first);
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, best.size()); ++i)
    text += cat(i > 0 ? ", " : "", best[i].second);
  return text;
}

std::string mtp_hint(const ModelSetup& setup, std::string_view pattern) {
  if (pattern.find("mtp") == pattern.npos || setup.choices.mtp.depths > 0) return "";
  return "; multi-token prediction is not trained (model.num_nextn_predict_layers)";
}

}  // namespace nemocube
