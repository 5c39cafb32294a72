#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Exact match and F1 as the official SQuAD scorers compute them. Texts must be valid UTF-8.
namespace nemocube {

enum class SquadVersion {
  v1_1,  ///< F1 is 0 whenever no word is common
  v2_0,  ///< two answers without words match; an answer that normalises to nothing is no answer
};

/// Lower case; without ASCII punctuation; the whole words a, an and the become spaces; runs of white space
/// become single spaces. Case and word boundaries are Unicode's, as in Python; combining marks are not
/// word characters.
std::string normalize_answer(std::string_view text);

struct AnswerScore {
  double em = 0, f1 = 0;  ///< in [0, 1]
};
/// The score against one right answer.
AnswerScore score_answer(std::string_view prediction, std::string_view answer, SquadVersion version);
/// The best em and, separately, the best f1 over all right answers. Without right answers, v2.0 gives 1 to an
/// empty prediction and v1.1 gives 0.
AnswerScore best_score(std::string_view prediction, std::span<const std::string> answers,
                       SquadVersion version);

struct SquadScore {
  double em = 0, f1 = 0;   ///< percent of `total`
  std::int64_t total = 0;  ///< questions
};

/// Sums over questions.
class SquadScorer {
 public:
  explicit SquadScorer(SquadVersion version = SquadVersion::v1_1) : version_(version) {}
  AnswerScore add(std::string_view prediction, std::span<const std::string> answers);
  SquadScore score() const;  ///< all 0 without questions

 private:
  SquadVersion version_;
  double em_ = 0, f1_ = 0;
  std::int64_t total_ = 0;
};

}  // namespace nemocube
