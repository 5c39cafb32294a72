#include "data/datasets/describe.h"

#include <nlohmann/json.hpp>

namespace nemocube {

std::string describe_supervision(const Sample& sample, const Tokenizer& tokenizer) {
  std::string text;
  std::vector<std::int64_t> run;
  bool run_is_target = false;
  const auto flush = [&] {
    if (!run.empty()) {
      const std::string piece = tokenizer.decode(run, false);
      text += run_is_target ? "⟦" + piece + "⟧" : piece;
    }
    run.clear();
  };
  const auto add = [&](std::int64_t id, bool target) {
    if (target != run_is_target) flush();
    run_is_target = target;
    run.push_back(id);
  };
  std::size_t begin = 0;
  for (const std::int64_t length : sample.lengths) {
    if (begin > 0) text += "‖";
    const std::size_t end = begin + static_cast<std::size_t>(length);
    add(sample.input_ids[begin], false);
    for (std::size_t t = begin; t < end; ++t) {
      const std::int64_t label = sample.labels[t];
      if (label != ignored_label)
        add(label, true);
      else if (t + 1 < end)
        add(sample.input_ids[t + 1], false);
    }
    flush();
    begin = end;
  }
  return text;
}

Json inspect_row(const Sample& sample, const Tokenizer* tokenizer, bool unshifted) {
  Json row;
  row["id"] = sample.id;
  row["input_ids"] = sample.input_ids;
  row["labels"] = sample.labels;
  if (unshifted) {
    row["loss_mask"] = Json::array();
    for (std::size_t t = 0; t < sample.labels.size(); ++t)
      row["loss_mask"].push_back(t > 0 && sample.labels[t - 1] != ignored_label ? 1 : 0);
  }
  row["text"] = nullptr;
  if (tokenizer) row["text"] = describe_supervision(sample, *tokenizer);
  return row;
}

}  // namespace nemocube
