#include "train/ranks/inputs.h"

#include <algorithm>
#include <map>
#include <vector>

#include "core/quote.h"
#include "core/version.h"
#include "data/files/regular_file.h"
#include "data/hf/frozen_weights.h"
#include "parallel/comm/together.h"
#include "train/model_io/find_model.h"
#include "train/ranks/rank_settings.h"
#include "train/recipe/files.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& file) {
  return cat(file.string(), ": ", to_string(sampled_sum(RegularFile(file))), "\n");
}

void add_folder(std::set<fs::path>& files, const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file() && (extension == ".safetensors" || extension == ".json"))
      files.insert(entry.path());
  }
}

void add_dataset(std::set<fs::path>& files, const DatasetSection& section) {
  if (section.kind == DatasetKind::mock) return;
  if (section.kind == DatasetKind::megatron) {
    for (const fs::path& file : token_files(section)) files.insert(file);
    return;
  }
  for (const fs::path& file : dataset_files(section)) files.insert(file);
}

/// A line for each file: name, size, sum.
std::string describe_files(const std::set<fs::path>& files) {
  std::string text;
  for (const fs::path& file : files) text += line_of(file);
  return text;
}

void want_same_settings(Communicator& group, std::optional<bool> allow_differing_machines) {
  std::vector<RankSetting> settings = settings_of_this_rank();
  std::string own;  // a line for each value, which quote() has made one line
  for (const RankSetting& s : settings) own += s.value + "\n";
  const std::vector<std::string> texts = differing_texts(&group, own);
  if (texts.empty()) return;
  std::vector<std::vector<RankSetting>> of_ranks(texts.size(), settings);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto values = lines_of(texts[rank]);
    expect(values.size() == settings.size(), "rank ", rank, " has ", values.size(), " settings");
    for (std::size_t i = 0; i < values.size(); ++i) of_ranks[rank][i].value = values[i];
  }
  const std::string differing = differing_settings(of_ranks, allow_differing_machines);
  require(differing.empty(), differing);
}

/// What the rows of `section` are made of, on this rank. All ranks compare; they may have other roles, or
/// these in another order.
void want_same_parts(Communicator* group, const DatasetSection& section, const RowInputs& inputs) {
  if (!group || group->size() == 1) return;
  std::string own;  // lines of role, sum and name; the place itself may be another on each rank
  for (const RowInput& input : inputs)
    own += cat(input.role, "\t", to_string(input.sum), "\t", name_of(input), "\n");
  std::string compared;
  for (const RowInput& input : inputs) compared += cat(input.role, "\t", to_string(input.sum), "\n");
  if (differing_texts(group, compared).empty()) return;
  std::vector<std::map<std::string, std::string>> of_ranks;  // sums by role
  std::map<std::string, std::string> names;  // by role, as the first rank that has one calls the part
  std::vector<std::string> roles;
  for (const std::string& text : gather_texts(group, own)) {
    auto& sums = of_ranks.emplace_back();
    for (const std::string& line : lines_of(text)) {
      const std::size_t role = line.find('\t'), sum = line.find('\t', role + 1);
      sums[line.substr(0, role)] = line.substr(role + 1, sum - role - 1);
      if (names.emplace(line.substr(0, role), line.substr(sum + 1)).second)
        roles.push_back(line.substr(0, role));
    }
  }
  std::vector<std::vector<RankSetting>> settings(of_ranks.size());
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
    for (const std::string& role : roles) {
      const auto found = of_ranks[rank].find(role);
      settings[rank].push_back(
          {cat(section.key, ": ", names[role]), found == of_ranks[rank].end() ? "none" : found->second});
    }
  fail(differing_settings(settings, std::nullopt));
}

}  // namespace

std::set<fs::path> files_of_model(const fs::path& model) {
  std::set<fs::path> files;
  add_folder(files, folder_of(model));
  if (const auto frozen = read_frozen_weights(folder_of(model)); frozen && fs::is_directory(frozen->base))
    add_folder(files, frozen->base);
  return files;
}

void want_same_inputs(const World& world, const Inputs& inputs) {
  if (world.size() == 1) return;
  Communicator& group = world.communicator();
  want_same_text(&group, "the program", cat("version: ", version()));
  want_same_settings(group, inputs.allow_differing_machines);
  want_same_text(&group, inputs.name, inputs.text);
  want_same_text(&group, "what is read", describe_files(inputs.files));
}

void want_same_inputs(const World& world, const Recipe& recipe, RecipeUse use, const fs::path& adapter) {
  if (world.size() == 1) return;
  Inputs inputs{"the recipe", describe(recipe), {}, recipe.debug.allow_differing_instruction_sets};
  if (recipe.model) inputs.files = files_of_model(recipe.model->path);
  if (recipe.peft && recipe.peft->adapter_path)
    inputs.files.merge(files_of_model(find_adapter(*recipe.peft->adapter_path)));
  if (!adapter.empty()) inputs.files.merge(files_of_model(adapter));
  if (recipe.dataset && use == RecipeUse::train) add_dataset(inputs.files, *recipe.dataset);
  for (const auto& [name, section] : recipe.validation_datasets) add_dataset(inputs.files, section);
  want_same_inputs(world, inputs);
  Communicator* const group = &world.communicator();
  if (recipe.dataset && use == RecipeUse::train)
    want_same_parts(group, *recipe.dataset, tokenizer_inputs(recipe, *recipe.dataset));
  for (const auto& [name, section] : recipe.validation_datasets)
    want_same_parts(group, section, tokenizer_inputs(recipe, section));
}

void want_same_data(Communicator* group, const DatasetSection& section, const Dataset& dataset) {
  if (!group || group->size() == 1) return;
  want_same_parts(group, section, data_inputs(dataset));
  want_same_parts(group, section, sampled_rows(dataset));
}

Moment moment_of_rank_0(Communicator* group) {
  return parse_moment(text_of_rank_0(group, [] { return to_string(Moment::now()); }));
}

}  // namespace nemocube
