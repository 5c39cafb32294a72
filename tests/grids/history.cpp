#include "tests/grids/history.h"

#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "parallel/comm/together.h"
#include "tests/support/ranks.h"

namespace nemocube::testing {
namespace {

std::string text_of(const History& history) {
  Json steps = Json::array(), weights = Json::object();
  for (const StepResult& s : history.steps) {
    Json counts = Json::array();
    for (const Tensor& c : s.expert_counts) counts.push_back(c.to_vector());
    steps.push_back({{"loss", s.loss},
                     {"grad_norm", s.grad_norm},
                     {"label_tokens", s.label_tokens},
                     {"outcome", static_cast<int>(s.outcome)},
                     {"not_finite", s.not_finite},
                     {"mtp_losses", s.mtp_losses},
                     {"auxiliary_losses", s.auxiliary_losses},
                     {"expert_counts", counts}});
  }
  for (const auto& [name, values] : history.weights) weights[name] = values.to_vector();
  return dump_json({{"steps", steps}, {"weights", weights}}, -1);
}

History history_from(const std::string& text) {
  const Json all = parse_json(text, "history of rank 0");
  History history;
  for (const Json& step : all["steps"]) {
    StepResult s;
    s.loss = step["loss"];
    s.grad_norm = step["grad_norm"];
    s.label_tokens = step["label_tokens"];
    s.outcome = static_cast<StepOutcome>(step["outcome"].get<int>());
    s.not_finite = step["not_finite"];
    s.mtp_losses = step["mtp_losses"].get<std::vector<double>>();
    s.auxiliary_losses = step["auxiliary_losses"].get<std::vector<std::pair<std::string, double>>>();
    for (const Json& counts : step["expert_counts"])
      s.expert_counts.push_back(Tensor::from(counts.get<std::vector<std::int64_t>>(), {std::ssize(counts)}));
    history.steps.push_back(std::move(s));
  }
  for (const auto& [name, values] : all["weights"].items())
    history.weights[name] = Tensor::from(values.get<std::vector<double>>(), {std::ssize(values)});
  return history;
}

}  // namespace

std::map<std::string, Tensor> weights_of(const Stack& model) {
  std::map<std::string, Tensor> all;
  for (const Parameter& p : model.parameters().all()) all[p.name] = p.value.clone();
  return all;
}

History history_of_rank_0(const std::function<History()>& train) {
  const StorageTime longer(test_world(), 1'000'000'000);  // rank 0 may train for longer than others wait
  History history;
  const std::string text = text_of_rank_0(&test_world().communicator(), [&] {
    history = train();
    return text_of(history);
  });
  return test_world().rank() == 0 ? history : history_from(text);
}

}  // namespace nemocube::testing
