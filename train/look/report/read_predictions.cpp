#include "train/look/report/read_predictions.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/datasets/squad.h"
#include "data/json/json.h"
#include "data/metrics/squad_score.h"
#include "train/datasets/recipe_datasets.h"
#include "train/evaluate/evaluate.h"

namespace nemocube::run_report {
namespace {

constexpr std::size_t most_shown = 50;

Predictions read_set(const std::string& set, const DatasetSection& section,
                     const std::filesystem::path& file) {
  const Json said = read_json_file(file);
  require(said.is_object(), file.string(), ": want an object, question id to answer");
  const std::vector<SquadQuestion> questions = read_squad(squad_options(section));
  const bool some_without = std::ranges::any_of(questions, [](const auto& q) { return q.answers.empty(); });
  const SquadVersion version = some_without ? SquadVersion::v2_0 : SquadVersion::v1_1;
  SquadScorer scorer(version);
  Predictions found{set, file.string(), {}, 0, 0, 0};
  for (const SquadQuestion& question : questions) {
    const auto at = said.find(question.id);
    if (at == said.end() || !at->is_string()) continue;
    const auto answers = question.answer_texts();
    const auto& prediction = at->get_ref<const std::string&>();
    const AnswerScore score = scorer.add(prediction, answers);
    if (found.answers.size() < most_shown)
      found.answers.push_back({question.question, prediction, answers, score.em == 1, score.f1});
  }
  const SquadScore score = scorer.score();
  found.count = score.total;
  found.exact_match = score.em;
  found.f1 = score.f1;
  require(found.count > 0, file.string(), ": has no answer to a question of the data set");
  return found;
}

}  // namespace

std::vector<Predictions> read_predictions(const Recipe& recipe, std::vector<std::string>& absent) {
  std::vector<Predictions> all;
  if (!recipe.evaluation.predictions_path) {
    absent.emplace_back(
        "the run kept none; evaluation.predictions_path names a file for them, and with "
        "evaluation.squad_metrics: true "
        "validations answer questions");
    return all;
  }
  for (const auto& [name, section] : recipe.validation_datasets) {
    if (section.kind != DatasetKind::squad) continue;
    const auto file = predictions_file(*recipe.evaluation.predictions_path, name);
    try {
      all.push_back(read_set(name, section, file));
      all.back().file = message_for_file(all.back().file, recipe.interpolated);  // pages are sent to others
    } catch (const Error& e) {
      std::string why = message_for_file(e.what(), recipe.interpolated);
      if (why.find("working directory") == why.npos)
        why += " (relative paths of a recipe start from the working directory)";
      absent.push_back(std::move(why));
    }
  }
  if (all.empty() && absent.empty()) absent.emplace_back("no validation set has questions");
  return all;
}

}  // namespace nemocube::run_report
