#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "core/quote.h"
#include "data/json/atomic_file.h"
#include "data/json/json.h"
#include "parallel/comm/together.h"
#include "train/assemble/from_recipe.h"
#include "train/commands/commands.h"
#include "train/datasets/chat_template.h"
#include "train/datasets/recipe_datasets.h"
#include "train/evaluate/evaluate.h"
#include "train/model_io/find_model.h"
#include "train/model_io/model_io.h"
#include "train/ranks/inputs.h"
#include "train/recipe/files.h"
#include "train/recipe/variables.h"
#include "train/tokens/token_ids.h"

namespace nemocube {
namespace {

struct EvalArguments {
  std::filesystem::path recipe, model, adapter, logprobs;
  std::vector<std::string> overrides;
  std::string device, gather;
  bool share_device = false;
  std::int64_t show = 0;
  bool json = false;
};

/// Then the folder that the recipe names need not exist or hold weights.
void use_model(std::vector<std::string>& overrides, const std::filesystem::path& dir) {
  // The path is literal: variables are not expanded, and "none" is a folder of that name.
  std::string text = recipe::escape_variables(dir.string());
  if (text == "none" || text == "None") text.insert(0, "./");
  std::string quoted;
  for (const char c : text) quoted += c == '\'' ? "''" : std::string(1, c);
  overrides.insert(overrides.end(),
                   {"model._target_=from_pretrained", "model.config=null", "model.initialisation=null",
                    cat("model.pretrained_model_name_or_path='", quoted, "'")});
}

void show_answers(const SquadResult& squad, std::int64_t count) {
  for (std::size_t i = 0; i < squad.answered.size() && static_cast<std::int64_t>(i) < count; ++i) {
    const AnsweredQuestion& a = squad.answered[i];
    std::cout << "  Q: " << printable(a.question)
              << "\n  A: " << (a.prediction.empty() ? "(none)" : printable(a.prediction)) << "   ["
              << (a.score.em == 1
                      ? "right"
                      : "expected: " + (a.answers.empty() ? "no answer" : printable(a.answers[0])))
              << "]\n";
  }
}

DataParallel::Held weights_to_hold(const EvalArguments& options) {
  require(options.gather.empty() || options.gather == "once" || options.gather == "each",
          "--gather: want once or each, got ", quote(options.gather));
  const bool once = options.gather.empty() ? !options.logprobs.empty() : options.gather == "once";
  return once ? DataParallel::Held::everything : DataParallel::Held::root;
}

void run(const EvalArguments& options, const Launch& launch) {
  const DataParallel::Held hold = weights_to_hold(options);
  std::vector<std::string> overrides = options.overrides;
  std::filesystem::path adapter;
  if (!options.model.empty()) {
    const ModelAndAdapter found = find_model_and_adapter(options.model, options.adapter);
    use_model(overrides, found.model);
    adapter = found.adapter;
  } else if (!options.adapter.empty()) {
    adapter = find_adapter(options.adapter);
  }
  override_device(overrides, options.device, options.share_device);
  Recipe recipe = load_recipe(options.recipe, overrides, RecipeUse::evaluate);
  const Device chosen =
      choose_device(recipe.device, model_operations(), asked_device(recipe, options.device));
  const ParallelSettings settings = settle(recipe);
  if (adapter.empty()) adapter = model_and_adapter(recipe).adapter;
  const bool speaks = launch.rank == 0;
  if (speaks) check_predictions_place(recipe);
  if (speaks && !options.logprobs.empty())
    for (const auto& [name, section] : recipe.validation_datasets)
      check_output_place(predictions_file(options.logprobs, name));
  World world(launch, comm_options(recipe));
  want_same_inputs(world, recipe, RecipeUse::evaluate, adapter);
  want_same_text(&world.communicator(), "the command line",
                 cat("--logprobs: ", options.logprobs.string(), "\n--gather: ", options.gather));
  recipe.moment = moment_of_rank_0(&world.communicator());
  const RunRanks ranks(world, recipe.distributed, settings, recipe_device(recipe, chosen, world));
  const std::filesystem::path& folder = recipe.model->path;
  const OpenedModel source(folder);
  const Finetuning finetuning = with_adapter(source, adapter);
  const LoadedModel loaded = load_model(source, recipe.model->dtype,
                                        ranks.place_for(setup_of(source, finetuning.choices)), finetuning);
  loaded.parallel->data().spread_values();
  for (const auto& [name, section] : recipe.validation_datasets) {
    const auto tokenizer = recipe_tokenizer(recipe, section);
    const auto dataset = recipe_dataset(recipe, section, tokenizer, &source.config(), false);
    want_same_data(&world.communicator(), section, *dataset);
    check_vocabulary(section, tokenizer, *dataset, loaded.model->config().vocab_size);
    const std::int64_t rows =
        recipe.validation_dataloader.batch_size.value_or(recipe.step_scheduler.local_batch_size);
    std::optional<TaskProgress> progress(std::in_place, cat("validation ", name), "rows");
    std::optional<LogProbabilityFile> scored;
    if (!options.logprobs.empty())
      scored.emplace(predictions_file(options.logprobs, name), world.communicator());
    const OnScoredRows on_rows = [&](const ScoredRows& of_batch) { scored->write(of_batch); };
    const ValidationResult v =
        validate(*loaded.parallel, dataset, rows, &recipe.kernels, {}, std::ref(*progress), std::nullopt,
                 scored ? on_rows : OnScoredRows(), hold);
    if (scored) scored->finish();
    progress.reset();
    Json line{{"dataset", name},
              {"val_loss", v.loss},
              {"num_label_tokens", v.label_tokens},
              {"samples", v.samples}};
    if (speaks && !options.json)
      std::cout << "validation " << name << ": loss " << v.loss << " over "
                << counted(v.label_tokens, "label token") << " in " << counted(v.samples, "row") << "\n";
    if (scored) {
      const std::string file = predictions_file(options.logprobs, name).string();
      line["logprobs"] = file;
      if (speaks && !options.json) std::cout << "  log-probabilities in " << printable(file) << "\n";
    }
    if (section.kind == DatasetKind::squad) {
      progress.emplace(cat("answers ", name), "questions");
      const SquadResult squad = answer_squad(
          *loaded.parallel, *tokenizer, section, recipe.evaluation,
          stop_ids(*tokenizer, loaded.model->config(), ModelAndAdapter{folder, adapter}.generation_folder()),
          &recipe.kernels, {}, std::ref(*progress), recipe_chat_template(recipe, section));
      progress.reset();
      const char* version = squad.version == SquadVersion::v2_0 ? "2.0" : "1.1";
      line["exact_match"] = squad.score.em;
      line["f1"] = squad.score.f1;
      line["questions"] = squad.score.total;
      line["squad_version"] = version;
      if (speaks && !options.json) {
        std::cout << std::fixed << std::setprecision(2) << "  exact match " << squad.score.em << " %, F1 "
                  << squad.score.f1 << " % over " << counted(squad.score.total, "question")
                  << " (rules of SQuAD " << version << ")\n"
                  << std::defaultfloat << std::setprecision(6);
        show_answers(squad, options.show);
      }
      if (speaks && recipe.evaluation.predictions_path)
        write_predictions(*recipe.evaluation.predictions_path, name, squad);
    }
    if (speaks && options.json) std::cout << dump_json(line, -1) << '\n';
  }
}

}  // namespace

void add_eval_command(Command& app) {
  auto o = std::make_shared<EvalArguments>();
  Command* command = app.add_subcommand(
      "eval", "Validation loss, log-probabilities of labels; exact match and F1 of SQuAD data");
  command->add_option("recipe", o->recipe, "recipe with model and validation_dataset")->required();
  command->add_option("--set", o->overrides, "key.sub=value: change the recipe; may be repeated")
      ->allow_extra_args(false);
  add_device_option(*command, o->device, "the recipe's key device");
  add_share_device_option(*command, o->share_device);
  command->add_option("--model", o->model,
                      "evaluate this model (Hugging Face directory, checkpoint or directory of a run) "
                      "instead of the recipe's");
  add_adapter_option(*command, o->adapter);
  command->add_option("--show", o->show, "print the first so many questions with the model's answers")
      ->capture_default_str()
      ->check(whole_number());
  command->add_flag("--json", o->json, "one JSON line for each validation set");
  command->add_option("--logprobs", o->logprobs,
                      "file to write: for each row a line of JSON with the log-probabilities of its labels; "
                      "for a further set "
                      "NAME, FILE_NAME");
  command->add_option(
      "--gather", o->gather,
      "of weights that ranks divide (ZeRO-3): once: gather all before the first batch of a set "
      "and give them back after its last; each: gather every block for each batch, in less "
      "memory; default: once with --logprobs, else each");
  command->callback_of_ranks([o](const Launch& launch) { run(*o, launch); });
}

}  // namespace nemocube
