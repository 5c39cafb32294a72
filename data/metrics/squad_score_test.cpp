#include "data/metrics/squad_score.h"

#include <doctest/doctest.h>

using namespace nemocube;

namespace {
constexpr auto v1 = SquadVersion::v1_1;
constexpr auto v2 = SquadVersion::v2_0;
}  // namespace

TEST_CASE("squad score: against the official scorer") {
  struct Case {
    const char *prediction, *answer;
    double em, f1;
  };
  const Case cases[] = {
      {"The Denver Broncos!", "denver broncos", 1, 1},
      {"Levi's Stadium in Santa Clara", "Levi's Stadium", 0, 0.5714285714},
      {"10th and 11th centuries", "in the 10th and 11th centuries", 0, 0.8888888889},
      {"golden  golden", "golden", 0, 0.6666666667},
      {"10th-century", "10th century", 0, 0},
      {"U.S.", "us", 1, 1},
      {"“gold”", "gold", 0, 0},
      {"the", "The", 1, 0},
      {"", "", 1, 0},
  };
  for (const Case& c : cases) {
    CAPTURE(c.prediction);
    const AnswerScore score = score_answer(c.prediction, c.answer, v1);
    CHECK(score.em == c.em);
    CHECK(score.f1 == doctest::Approx(c.f1).epsilon(1e-9));
    const AnswerScore turned = score_answer(c.answer, c.prediction, v1);
    CHECK(turned.em == score.em);
    CHECK(turned.f1 == doctest::Approx(score.f1));
  }
}

TEST_CASE("squad score: normalisation is Python's") {
  CHECK(normalize_answer("  The  Cat,\tan A-b\u00a0c\u2028d ") == "cat ab c d");
  CHECK(normalize_answer("Äthe the É") == "äthe é");                // no boundary inside a word
  CHECK(normalize_answer("a—b") == "—b");                           // a dash is none of ASCII's punctuation
  CHECK(normalize_answer("a\u0301b a\u0301") == "\u0301b \u0301");  // a mark is no word character to Python
  CHECK(normalize_answer("the_end a1 an² thé") == "theend a1 an² thé");
  CHECK(normalize_answer("A. B. An. the-an") == "b thean");
  CHECK(normalize_answer("Ἡ ΟΔΟΣ") == "ἡ οδος");
  CHECK(normalize_answer("МОСКВА!") == "москва");
  CHECK(normalize_answer("a an the the a") == "");
  CHECK(normalize_answer("$#!") == "");
}

TEST_CASE("squad score: best of several answers, em and f1 each for itself") {
  const std::vector<std::string> answers{"one two three", "one"};
  const AnswerScore score = best_score("one two", answers, v1);
  CHECK(score.em == 0);
  CHECK(score.f1 == doctest::Approx(0.8));
  CHECK(best_score("One.", answers, v1).em == 1);
  CHECK(best_score("", {}, v1).em == 0);
}

TEST_CASE("squad score: version 2.0") {
  const std::vector<std::string> none, blank{"the"}, some{"the", "cat"};
  CHECK(best_score("", none, v2).em == 1);
  CHECK(best_score("", none, v2).f1 == 1);
  CHECK(best_score("cat", none, v2).f1 == 0);
  CHECK(best_score("an", blank, v2).em == 1);
  CHECK(best_score("an", blank, v2).f1 == 1);
  CHECK(best_score("", some, v2).em == 0);
  CHECK(best_score("", some, v2).f1 == 0);
  CHECK(best_score("The cat", some, v2).f1 == 1);
}

TEST_CASE("squad score: totals are percentages of all questions") {
  SquadScorer scorer;
  CHECK(scorer.score().total == 0);
  CHECK(scorer.score().em == 0);
  const std::vector<std::string> gold{"golden"};
  scorer.add("golden", gold);
  scorer.add("golden golden", gold);
  scorer.add("silver", gold);
  scorer.add("", gold);
  const SquadScore score = scorer.score();
  CHECK(score.total == 4);
  CHECK(score.em == doctest::Approx(25));
  CHECK(score.f1 == doctest::Approx(100 * (1 + 2.0 / 3) / 4));
}
