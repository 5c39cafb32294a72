#include "data/metrics/squad_score.h"

#include <algorithm>
#include <map>

#include "core/utf8.h"
#include "data/datasets/text.h"
#include "data/text/lower_case.h"
#include "data/text/pattern.h"

namespace nemocube {

namespace {

bool is_ascii_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  bool inside = false;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (step.valid && is_python_space(step.character)) {
      inside = false;
    } else {
      if (!inside) out.emplace_back();
      inside = true;
      out.back().append(text.substr(i, step.length));
    }
    i += step.length;
  }
  return out;
}

/// The number of common words. A repeated word counts as often as in the text that has it less often.
std::int64_t common_words(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::map<std::string_view, std::int64_t> left;
  for (const std::string& word : a) ++left[word];
  std::int64_t common = 0;
  for (const std::string& word : b)
    if (const auto found = left.find(word); found != left.end() && found->second-- > 0) ++common;
  return common;
}

}  // namespace

std::string normalize_answer(std::string_view text) {
  std::string bare = to_lower(text);
  std::erase_if(bare, is_ascii_punctuation);
  // \b as in Python's re: word characters are letters, numbers and the underscore.
  static const Pattern articles(R"((?<![\p{L}\p{N}_])(?:a|an|the)(?![\p{L}\p{N}_]))");
  std::string joined;
  for (const std::string& word : words(articles.replace_all(bare, " ")))
    joined += (joined.empty() ? "" : " ") + word;
  return joined;
}

AnswerScore score_answer(std::string_view prediction, std::string_view answer, SquadVersion version) {
  const std::string got = normalize_answer(prediction), want = normalize_answer(answer);
  const std::vector<std::string> got_words = words(got), want_words = words(want);
  AnswerScore score;
  score.em = got == want ? 1 : 0;
  if (version == SquadVersion::v2_0 && (got_words.empty() || want_words.empty())) {
    score.f1 = score.em;
    return score;
  }
  const auto common = static_cast<double>(common_words(got_words, want_words));
  if (common == 0) return score;
  const double precision = common / static_cast<double>(got_words.size());
  const double recall = common / static_cast<double>(want_words.size());
  score.f1 = 2 * precision * recall / (precision + recall);
  return score;
}

AnswerScore best_score(std::string_view prediction, std::span<const std::string> answers,
                       SquadVersion version) {
  AnswerScore best;
  bool any = false;
  for (const std::string& answer : answers) {
    if (version == SquadVersion::v2_0 && normalize_answer(answer).empty()) continue;
    const AnswerScore score = score_answer(prediction, answer, version);
    best = {std::max(best.em, score.em), std::max(best.f1, score.f1)};
    any = true;
  }
  return any || version == SquadVersion::v1_1 ? best : score_answer(prediction, "", version);
}

AnswerScore SquadScorer::add(std::string_view prediction, std::span<const std::string> answers) {
  const AnswerScore score = best_score(prediction, answers, version_);
  em_ += score.em;
  f1_ += score.f1;
  ++total_;
  return score;
}

SquadScore SquadScorer::score() const {
  if (total_ == 0) return {};
  const auto total = static_cast<double>(total_);
  return {100 * em_ / total, 100 * f1_ / total, total_};
}

}  // namespace nemocube
