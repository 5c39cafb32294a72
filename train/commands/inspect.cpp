#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/datasets/describe.h"
#include "data/files/link.h"
#include "data/hf/config_keys.h"
#include "data/hf/hf_config.h"
#include "data/hf/per_layer_config.h"
#include "data/json/json.h"
#include "model/blocks/block_kinds.h"
#include "model/flops.h"
#include "train/commands/commands.h"
#include "train/commands/inspect_checkpoint.h"
#include "train/datasets/recipe_datasets.h"
#include "train/model_io/find_model.h"
#include "train/recipe/files.h"
#include "train/recipe/key_list.h"
#include "train/schedule/lr_schedule.h"

namespace nemocube {
namespace {

struct InspectArguments {
  std::filesystem::path model, recipe;
  std::vector<std::string> overrides;
  std::int64_t samples = 5;
  bool schedule = false, recipe_keys = false, json = false, no_verify = false;
  CheckpointInspection checkpoint;
};

/// Blocks of other sizes than the rest: "  block 7   moe of its own: num_experts_per_tok 4,
///                                                   moe_intermediate_size 1280".
/// Where layers of the files are several blocks: "  model.layers.7.mlp of its own: intermediate_size 7168".
void print_own_sizes(const ModelConfig& config) {
  for (const auto& [number, own] : config.own_configs) {
    const Json sizes = differing_block_keys(config.common(), own);
    std::string text;
    for (const auto& [key, value] : sizes.items())
      text += cat(text.empty() ? "" : ", ", key, " ", dump_json(value, -1));
    if (own.attention.window != config.attention.window)
      text += cat(text.empty() ? "" : ", ", "sliding_window ", own.attention.window);
    if (config.names.layered())
      std::cout << "  " << config.text(mixer_of(block_name(number)));
    else
      std::cout << "  block " << std::setw(4) << number
                << name_of(config.blocks[static_cast<std::size_t>(number)]);
    std::cout << " of its own: " << text << '\n';
  }
}

void inspect_model(const InspectArguments& options) {
  const std::filesystem::path named = through_links(options.model);
  const bool is_config = std::filesystem::is_regular_file(named);
  const ModelConfig config = read_hf_config(is_config ? named : find_model(named));
  const ModelSetup setup(config);
  const auto specs = tensor_specs(setup), mtp = mtp_tensor_specs(setup);
  const TensorCount count = count_tensors(specs), mtp_count = count_tensors(mtp);
  if (options.json) {
    const auto listed = [](const std::vector<TensorSpec>& list) {
      Json tensors = Json::array();
      for (const TensorSpec& s : list) {
        const auto dims = s.shape.dims();
        tensors.push_back({{"name", s.name}, {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())}});
      }
      return tensors;
    };
    Json facts{{"pattern", to_pattern(config.blocks)},
               {"tensors", count.tensors},
               {"parameters", count.parameters()},
               {"buffer_elements", count.buffers},
               {"mtp_tensors", mtp_count.tensors},
               {"mtp_parameters", mtp_count.parameters()},
               {"specs", listed(specs)},
               {"mtp_specs", listed(mtp)}};
    write_per_layer_config(config, facts);
    std::cout << dump_json(facts, -1) << '\n';
    return;
  }
  std::cout << std::left << "blocks      " << config.num_layers() << "  " << to_pattern(config.blocks)
            << '\n';
  std::size_t width = 10;
  for (const BlockKind kind : config.kinds()) width = std::max(width, name_of(kind).size() + 1);
  for (const BlockKind kind : block_kinds())
    if (config.count(kind) > 0)
      std::cout << "  " << std::setw(static_cast<int>(width)) << name_of(kind) << config.count(kind) << '\n';
  if (config.attention.window > 0)
    std::cout << "  a query sees " << counted(config.attention.window, "key")
              << " at most (sliding_window)\n";
  print_own_sizes(config);
  std::cout << "\ntensors (experts are listed stacked)\n";
  for (const auto* list : {&specs, &mtp})
    for (const TensorSpec& s : *list)
      std::cout << "  " << std::setw(64) << s.name << to_string(s.shape) << (s.buffer ? "  buffer" : "")
                << '\n';
  const double flops = forward_flops_per_token(setup, 4096).total();
  std::cout << "\ntensors     " << count.tensors << " (each expert counted)\nparameters  "
            << count.parameters() << '\n';
  if (count.buffers > 0)
    std::cout << "buffers     " << count.buffers << " numbers, which no optimizer changes\n";
  if (mtp_count.tensors > 0)
    std::cout << "with multi-token prediction: tensors " << count.tensors + mtp_count.tensors
              << ", parameters " << count.parameters() + mtp_count.parameters() << '\n';
  std::cout << "forward     " << flops * 1e-9
            << " GFLOP a token at 4096 tokens a sequence; training three times that\n";
}

void inspect_samples(const InspectArguments& options) {
  const Recipe recipe = load_recipe(options.recipe, options.overrides, RecipeUse::data);
  DatasetSection section = recipe.dataset ? *recipe.dataset : recipe.validation_datasets.begin()->second;
  section.shuffle_seed.reset();
  const auto tokenizer = recipe_tokenizer(recipe, section);
  const std::optional<ModelConfig> model = config_if_there(recipe);
  const auto dataset = recipe_dataset(recipe, section, tokenizer, model ? &*model : nullptr, false);
  for (std::int64_t i = 0; i < std::min(options.samples, dataset->size()); ++i)
    std::cout << dump_json(
                     inspect_row(dataset->sample(i), tokenizer ? &*tokenizer : nullptr, section.unshifted),
                     -1)
              << '\n';
}

void run(const InspectArguments& options) {
  if (options.recipe_keys) {
    std::cout << recipe::key_table();
    return;
  }
  if (!options.checkpoint.checkpoint.empty()) {
    CheckpointInspection checkpoint = options.checkpoint;
    checkpoint.json = options.json;
    checkpoint.verify = !options.no_verify;
    return inspect_checkpoint(checkpoint);
  }
  if (!options.model.empty()) return inspect_model(options);
  if (!options.schedule) return inspect_samples(options);
  print_schedule(std::cout, load_recipe(options.recipe, options.overrides, RecipeUse::schedule));
}

}  // namespace

void add_inspect_command(Command& app) {
  auto o = std::make_shared<InspectArguments>();
  Command* command =
      app.add_subcommand("inspect", "What a checkpoint, a model, a data set or a schedule holds");
  auto* checkpoint = command->add_option("checkpoint", o->checkpoint.checkpoint,
                                         "checkpoint or directory of a run (its LATEST): tensors, files, "
                                         "origin; compares all files with their checksums");
  command->add_flag("--tensors", o->checkpoint.tensors, "list every tensor of the checkpoint")
      ->needs(checkpoint);
  command->add_flag("--no-verify", o->no_verify, "read headers and indices of the checkpoint only")
      ->needs(checkpoint);
  auto* model = command->add_option("--model", o->model,
                                    "Hugging Face directory, config.json, checkpoint or directory of a run: "
                                    "the model's shapes; reads no weights");
  auto* recipe = command->add_option(
      "--recipe", o->recipe, "recipe: its data set (validation set if it has no other) or --schedule");
  model->excludes(recipe)->excludes(checkpoint);
  recipe->excludes(checkpoint);
  command->add_option("--set", o->overrides, "key.sub=value: change the recipe")->needs(recipe);
  command->add_option("--samples", o->samples, "rows to print, in file order, unpacked, as JSON lines")
      ->capture_default_str()
      ->check(whole_number())
      ->needs(recipe);
  command->add_flag("--schedule", o->schedule, "print n, learning rate, weight decay, separated by tabs")
      ->needs(recipe);
  auto* keys = command->add_flag("--recipe-keys", o->recipe_keys, "print the table of all keys of recipes");
  keys->excludes(model)->excludes(recipe)->excludes(checkpoint);
  command->add_flag("--json", o->json, "checkpoint, --model: one JSON object")
      ->excludes(recipe)
      ->excludes(keys);
  command->callback([o, checkpoint, model, recipe, keys] {
    require(checkpoint->count() + model->count() + recipe->count() + keys->count() == 1,
            "inspect: give a checkpoint, or --model or --recipe, or --recipe-keys");
    require(checkpoint->count() == 0 || !o->checkpoint.checkpoint.empty(),
            "inspect: the name of the checkpoint is empty");
    run(*o);
  });
}

}  // namespace nemocube
