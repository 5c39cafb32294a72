#include "train/datasets/row_inputs.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include "core/quote.h"
#include "data/json/atomic_file.h"
#include "train/datasets/chat_template.h"
#include "train/recipe/files.h"

namespace nemocube {

namespace fs = std::filesystem;

namespace {

bool has_tokenizer(const Recipe& recipe, const DatasetSection& section) {
  if (section.kind == DatasetKind::mock || section.kind == DatasetKind::tokens) return false;
  return section.kind != DatasetKind::megatron || section.tokenizer || recipe.tokenizer;
}

const RowInput* find_role(const RowInputs& inputs, const std::string& role) {
  const auto found = std::ranges::find(inputs, role, &RowInput::role);
  return found == inputs.end() ? nullptr : &*found;
}

}  // namespace

RowInputs tokenizer_inputs(const Recipe& recipe, const DatasetSection& section) {
  RowInputs inputs;
  if (!has_tokenizer(recipe, section)) return inputs;
  const fs::path path = existing_tokenizer_path(recipe, section), folder = folder_of(path);
  const fs::path vocabulary = fs::is_directory(path) ? path / "tokenizer.json" : path;
  inputs.push_back({"tokenizer.json", vocabulary.string(), sum_of_file(vocabulary)});
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"})
    if (fs::exists(folder / name))
      inputs.push_back({name, (folder / name).string(), sum_of_file(folder / name)});
  std::string tokens;
  for (const auto& [name, token] : special_tokens_of(folder)) tokens += cat(name, ' ', quote(token), '\n');
  inputs.push_back({"special tokens", folder.string(), sum_of(tokens)});
  if (const auto texts = recipe_template_texts(recipe, section)) {
    const auto& [without_tools, with_tools] = *texts;
    inputs.push_back({"chat template", without_tools.place, sum_of(without_tools.source)});
    if (with_tools.source != without_tools.source)
      inputs.push_back({"chat template for tools", with_tools.place, sum_of(with_tools.source)});
  }
  return inputs;
}

RowInputs data_inputs(const Dataset& dataset) {
  RowInputs inputs;
  for (const DataFile& file : dataset.files())
    inputs.push_back({cat("data file ", inputs.size() + 1), file.path.string(), file.sum});
  return inputs;
}

RowInputs row_inputs(const Recipe& recipe, const DatasetSection& section, const Dataset& dataset) {
  RowInputs inputs = tokenizer_inputs(recipe, section);
  for (RowInput& input : data_inputs(dataset)) inputs.push_back(std::move(input));
  return inputs;
}

RowInputs sampled_rows(const Dataset& dataset) {
  RowInputs inputs;
  const std::int64_t most = 16, rows = dataset.size(), count = std::min(rows, most);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row =
        count == rows ? i : (rows - 1) / (count - 1) * i + (rows - 1) % (count - 1) * i / (count - 1);
    const Sample sample = dataset.sample(row);
    FileSum sum;
    for (const auto* values : {&sample.input_ids, &sample.labels, &sample.lengths})
      sum.add(std::as_bytes(std::span(*values)));
    inputs.push_back({cat("row ", row), sample.id, sum});
  }
  return inputs;
}

std::string name_of(const RowInput& input) { return cat(excerpt(input.place), " (", input.role, ")"); }

std::string change_of_rows(const RowInputs& written, const RowInputs& now) {
  for (const RowInput& before : written) {
    const RowInput* after = find_role(now, before.role);
    if (!after) return cat("the rows of the checkpoint are made of ", name_of(before), " as well");
    if (after->sum != before.sum)
      return cat(name_of(*after), " has changed since the checkpoint was written: ", to_string(before.sum),
                 " then", after->place == before.place ? "" : cat(" (", excerpt(before.place), ")"), ", ",
                 to_string(after->sum), " now");
  }
  for (const RowInput& after : now)
    if (!find_role(written, after.role))
      return cat("the rows of this run are made of ", name_of(after),
                 " as well, those of the checkpoint were not");
  return "";
}

void want_same_rows(const RowInputs& written, const RowInputs& now) {
  const std::string change = change_of_rows(written, now);
  require(change.empty(), change,
          "; want what it was, or checkpoint.load_data=false, which begins at the first row");
}

}  // namespace nemocube
