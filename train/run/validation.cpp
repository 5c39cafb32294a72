#include "train/run/validation.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/allocator.h"
#include "core/log.h"
#include "data/files/regular_file.h"
#include "data/json/json.h"
#include "train/assemble/diffusion_training.h"
#include "train/datasets/chat_template.h"
#include "train/datasets/recipe_datasets.h"
#include "train/ranks/inputs.h"
#include "train/recipe/files.h"
#include "train/tokens/token_ids.h"

namespace nemocube {

Validation::Validation(const Recipe& recipe, const ModelConfig& config, Communicator* ranks)
    : recipe_(recipe) {
  if (recipe.evaluation.squad_metrics)
    check_predictions_place(recipe);
  else if (recipe.evaluation.predictions_path)
    log_warning(
        "evaluation.predictions_path is without effect in training unless evaluation.squad_metrics is true");
  for (const auto& [name, section] : recipe.validation_datasets) {
    const auto tokenizer = recipe_tokenizer(recipe, section);
    const auto dataset = recipe_dataset(recipe, section, tokenizer, &config, false);
    want_same_data(ranks, section, *dataset);
    check_vocabulary(section, tokenizer, *dataset, config.vocab_size);
    rows_.emplace(name, row_inputs(recipe, section, *dataset));
    Set set{section, tokenizer, dataset, recipe_corruption(recipe, config, section), {}, {}};
    if (recipe.evaluation.squad_metrics && section.kind == DatasetKind::squad) {
      set.stop_ids = stop_ids(*tokenizer, config, model_and_adapter(recipe).generation_folder());
      set.chat_template = recipe_chat_template(recipe, section);
    }
    sets_.emplace(name, std::move(set));
  }
}

void warn_of_other_rows(const Recipe& recipe, const std::map<std::string, RowInputs>& written,
                        const std::map<std::string, RowInputs>& now) {
  for (const auto& [name, section] : recipe.validation_datasets) {
    const auto before = written.find(name), after = now.find(name);
    if (before == written.end() || after == now.end()) continue;
    if (const std::string change = change_of_rows(before->second, after->second); !change.empty())
      log_warning(section.key, ": ", change,
                  "; the run goes on, but losses from here on are of other rows than those before, and are "
                  "compared with these by early_stopping and for the best checkpoint");
  }
}

namespace {

/// A loss read from a file; a loss that is not a JSON number was not finite.
double loss_of(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// val_loss in the line of `step` in a validation log; absent where no whole line has it.
std::optional<double> logged_loss(const std::filesystem::path& log, std::int64_t step) {
  std::optional<double> loss;
  if (!std::filesystem::exists(log)) return loss;
  for_each_file_line(log, most_line_bytes, [&](std::string_view line, std::int64_t) {
    const Json json = loss ? Json() : Json(log_fields(line));
    if (json.is_object() && json.value("step", Json()) == step && json.contains("val_loss"))
      loss = loss_of(json["val_loss"]);
  });
  return loss;
}

}  // namespace

Losses Validation::known_losses(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                                std::int64_t step) const {
  Losses known = logged_losses(recipe_, folder, step);
  Json noted;
  if (const auto file = checkpoint / "losses.json"; std::filesystem::exists(file)) try {
      noted = read_json_file(file);
    } catch (const Error& e) {
      log_warning(e.what(), "; the validation of step ", step, " counts as missing");
    }
  for (const auto& [name, set] : sets_)
    if (noted.is_object() && noted.contains(name)) known[name] = loss_of(noted[name]);
  return known;
}

Losses logged_losses(const Recipe& recipe, const std::filesystem::path& folder, std::int64_t step) {
  Losses logged;
  for (const auto& [name, section] : recipe.validation_datasets)
    if (const auto loss = logged_loss(folder / RunLog::file_name(name), step)) logged.emplace(name, *loss);
  return logged;
}

Losses Validation::run(ParallelModel& model, const Moment& moment, const Stop& stop,
                       const Losses& known) const {
  const std::int64_t rows =
      recipe_.validation_dataloader.batch_size.value_or(recipe_.step_scheduler.local_batch_size);
  Losses losses = known;
  for (const auto& [name, set] : sets_) {
    if (losses.contains(name)) continue;
    const std::string called = name == "default" ? "" : " " + name;
    std::optional<TaskProgress> progress(std::in_place, "validation" + called, "rows");
    const ValidationResult v = validate(model, set.dataset, rows, &recipe_.kernels, stop.together,
                                        std::ref(*progress), set.corruption);
    progress.reset();
    if (!v.complete) break;
    ValidationRecord record;
    record.step = moment.step;
    record.epoch = moment.epoch;
    record.val_loss = v.loss;
    record.lr = moment.lr;
    record.consumed_samples = moment.consumed_samples;
    record.label_tokens = v.label_tokens;
    record.peak_bytes = allocator(model.model().device()).stats().peak_bytes;
    std::string metrics;
    if (recipe_.evaluation.squad_metrics && set.section.kind == DatasetKind::squad) {
      progress.emplace("answers" + called, "questions");
      const SquadResult squad = answer_squad(
          model, *set.tokenizer, set.section, recipe_.evaluation, set.stop_ids, &recipe_.kernels,
          model.independent_replicas() ? stop.alone : stop.together, std::ref(*progress), set.chat_template);
      progress.reset();
      if (!squad.complete) break;
      if (recipe_.evaluation.predictions_path && moment.log)
        write_predictions(*recipe_.evaluation.predictions_path, name, squad);
      record.exact_match = squad.score.em;
      record.f1 = squad.score.f1;
      metrics = cat(", exact match ", squad.score.em, " %, F1 ", squad.score.f1, " %");
    }
    if (moment.log) moment.log->validation(name, record);
    log_info("validation", called, " after step ", moment.step, ": loss ", v.loss, metrics);
    losses.emplace(name, v.loss);
  }
  if (losses.size() < sets_.size())
    log_warning("validation after step ", moment.step,
                " given up: a signal asked to stop; a resumed run makes up for it");
  return losses;
}

}  // namespace nemocube
