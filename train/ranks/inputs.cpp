#include "train/ranks/inputs.h"

#include <algorithm>
#include <fstream>
#include <span>
#include <vector>

#include "core/quote.h"
#include "core/rng.h"
#include "core/version.h"
#include "data/files/crc32c.h"
#include "data/hf/frozen_weights.h"
#include "parallel/comm/together.h"
#include "train/model_io/find_model.h"
#include "train/ranks/rank_settings.h"
#include "train/recipe/files.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& file) {
  constexpr std::int64_t piece = 1 << 20;
  std::ifstream in(file, std::ios::binary);
  const auto size = static_cast<std::int64_t>(fs::file_size(file));
  std::vector<char> bytes(static_cast<std::size_t>(std::min(piece, size)));
  std::uint32_t sum = 0;
  for (const std::int64_t begin : {std::int64_t{0}, std::max(std::int64_t{0}, size - piece)}) {
    in.seekg(begin);
    in.read(bytes.data(), std::ssize(bytes));
    require(in.good(), file.string(), ": cannot be read");
    sum = crc32c(std::as_bytes(std::span(bytes)), sum);
  }
  return cat(file.string(), ": ", size, " bytes, sum ", sum, "\n");
}

void add_folder(std::set<fs::path>& files, const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file() && (extension == ".safetensors" || extension == ".json"))
      files.insert(entry.path());
  }
}

void add_dataset(std::set<fs::path>& files, const Recipe& recipe, const DatasetSection& section) {
  if (section.kind == DatasetKind::mock) return;
  if (section.kind == DatasetKind::megatron) {
    for (const fs::path& file : token_files(section)) files.insert(file);
    return;
  }
  for (const fs::path& file : dataset_files(section)) files.insert(file);
  if (section.kind == DatasetKind::tokens) return;
  const fs::path tokenizer = existing_tokenizer_path(recipe, section);
  files.insert(fs::is_directory(tokenizer) ? tokenizer / "tokenizer.json" : tokenizer);
  for (const char* name : {"chat_template.jinja", "tokenizer_config.json"})
    if (fs::exists(folder_of(tokenizer) / name)) files.insert(folder_of(tokenizer) / name);
}

/// A line for each file: name, size, sum.
std::string describe_files(const std::set<fs::path>& files) {
  std::string text;
  for (const fs::path& file : files) text += line_of(file);
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// The first line in which two texts differ, of both.
std::string difference(const std::string& here, const std::string& there) {
  const auto a = lines_of(here), b = lines_of(there);
  std::size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  const auto line = [i](const std::vector<std::string>& lines) {
    return i < lines.size() ? quote(lines[i]) : std::string("nothing");
  };
  return cat(line(a), " against ", line(b));
}

/// The texts of all ranks, on every rank, where they differ; else nothing. Equal texts cost a few bytes.
std::vector<std::string> differing_texts(Communicator& group, const std::string& text) {
  const std::vector<std::uint64_t> hashes = group.host_all_gather(hash_name(text));
  const bool same = std::ranges::all_of(hashes, [&](std::uint64_t hash) { return hash == hashes[0]; });
  return same ? std::vector<std::string>{} : gather_texts(&group, text);
}

/// Throws Error naming the first rank whose text is not that of rank 0. `what` says what the texts describe.
void want_same(Communicator& group, const std::string& what, const std::string& text) {
  const std::vector<std::string> texts = differing_texts(group, text);
  for (std::size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0])
      fail(what, " of rank ", rank, " is not that of rank 0: ", difference(texts[rank], texts[0]));
}

void want_same_settings(Communicator& group, std::optional<bool> allow_differing_machines) {
  std::vector<RankSetting> settings = settings_of_this_rank();
  std::string own;  // a line for each value, which quote() has made one line
  for (const RankSetting& s : settings) own += s.value + "\n";
  const std::vector<std::string> texts = differing_texts(group, own);
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
  want_same(group, "the program", cat("version: ", version()));
  want_same_settings(group, inputs.allow_differing_machines);
  want_same(group, inputs.name, inputs.text);
  want_same(group, "what is read", describe_files(inputs.files));
}

void want_same_inputs(const World& world, const Recipe& recipe, RecipeUse use, const fs::path& adapter) {
  if (world.size() == 1) return;
  Inputs inputs{"the recipe", describe(recipe), {}, recipe.debug.allow_differing_instruction_sets};
  if (recipe.model) inputs.files = files_of_model(recipe.model->path);
  if (recipe.peft && recipe.peft->adapter_path)
    inputs.files.merge(files_of_model(find_adapter(*recipe.peft->adapter_path)));
  if (!adapter.empty()) inputs.files.merge(files_of_model(adapter));
  if (recipe.dataset && use == RecipeUse::train) add_dataset(inputs.files, recipe, *recipe.dataset);
  for (const auto& [name, section] : recipe.validation_datasets) add_dataset(inputs.files, recipe, section);
  want_same_inputs(world, inputs);
}

}  // namespace nemocube
