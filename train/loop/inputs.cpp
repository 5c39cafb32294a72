#include "train/loop/inputs.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "core/version.h"
#include "data/files/crc32c.h"
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
  files.insert(dataset_file(section));
  if (section.kind == DatasetKind::tokens) return;
  const fs::path tokenizer = existing_tokenizer_path(recipe, section);
  files.insert(fs::is_directory(tokenizer) ? tokenizer / "tokenizer.json" : tokenizer);
}

/// A line for each file: name, size, sum.
std::string describe_inputs(const Recipe& recipe) {
  std::set<fs::path> files;
  add_folder(files, folder_of(recipe.model->path));
  if (recipe.dataset) add_dataset(files, recipe, *recipe.dataset);
  for (const auto& [name, section] : recipe.validation_datasets) add_dataset(files, recipe, section);
  std::string text;
  for (const fs::path& file : files) text += line_of(file);
  return text;
}

}  // namespace

void want_same_inputs(const Recipe& recipe, const RunRanks& ranks) {
  if (!ranks.several()) return;
  ranks.want_same("the program", cat("version: ", version()));
  ranks.want_same("the recipe", describe(recipe));
  ranks.want_same("what is read", describe_inputs(recipe));
}

}  // namespace nemocube
