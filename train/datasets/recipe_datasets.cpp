#include "train/datasets/recipe_datasets.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "data/datasets/messages.h"
#include "data/datasets/mock.h"
#include "data/datasets/packing.h"
#include "data/datasets/tokens.h"
#include "data/files/regular_file.h"
#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "train/datasets/chat_template.h"
#include "train/logging/progress.h"
#include "train/recipe/files.h"
#include "train/tokens/token_ids.h"

namespace nemocube {
namespace {

RowOptions row_options(const DatasetSection& section) {
  RowOptions rows;
  rows.seq_length = section.seq_length.value_or(0);
  rows.padding = section.padding;
  rows.truncation = section.truncation ? section.truncation_side : Truncation::none;
  rows.append_eos = section.append_eos;
  return rows;
}

// The ids of the model are used when the tokenizer's files name none.
RowOptions row_options(const Recipe& recipe, const DatasetSection& section) {
  RowOptions rows = row_options(section);
  if (!recipe.model) return rows;
  const std::filesystem::path model = recipe.model->path;
  if (std::filesystem::is_regular_file(model) || std::filesystem::exists(model / "config.json")) {
    const NemotronHConfig config = read_hf_config(model);
    if (!config.eos_token_id.empty()) rows.eos_id = config.eos_token_id[0];
    rows.pad_id = config.pad_token_id;
  }
  return rows;
}

std::shared_ptr<const Dataset> unpacked(const Recipe& recipe, const DatasetSection& section,
                                        const std::optional<Tokenizer>& tokenizer) {
  require(!section.mask_reasoning_content, section.key,
          ".mask_reasoning_content: not in this build; remove the key");
  switch (section.kind) {
    case DatasetKind::squad: {
      SquadOptions options = squad_options(section);
      options.rows = row_options(recipe, section);
      return make_squad_dataset(*tokenizer, options);
    }
    case DatasetKind::messages: {
      MessagesOptions options;
      options.path = dataset_file(section).string();
      options.split = section.split.value_or("train");
      options.limit_dataset_samples = section.limit_dataset_samples;
      options.mask_history = section.mask_history;
      options.skip_invalid_samples = section.skip_invalid_samples;
      if (section.shuffle_seed) options.shuffle_seed = static_cast<std::uint64_t>(*section.shuffle_seed);
      options.rows = row_options(recipe, section);
      return make_messages_dataset(*tokenizer, options);
    }
    case DatasetKind::mock: {
      MockOptions options;
      options.vocab_size = *section.vocab_size;
      options.seq_length = section.seq_length.value_or(1024);
      options.num_samples = section.limit_dataset_samples.value_or(section.num_samples);
      options.seed = static_cast<std::uint64_t>(recipe.seed);
      return std::make_shared<MockDataset>(options);
    }
    case DatasetKind::tokens:
      return std::make_shared<TokensDataset>(dataset_file(section));
  }
  throw std::logic_error("dataset kind");
}

}  // namespace

std::optional<Tokenizer> recipe_tokenizer(const Recipe& recipe, const DatasetSection& section) {
  if (section.kind == DatasetKind::mock || section.kind == DatasetKind::tokens) return std::nullopt;
  const std::filesystem::path path = existing_tokenizer_path(recipe, section);
  check_chat_template(section, path);
  return Tokenizer::load(path);
}

bool is_tokenizer_file(const std::string& name) {
  constexpr std::array<std::string_view, 5> known{"special_tokens_map.json", "added_tokens.json",
                                                  "vocab.json", "merges.txt", "chat_template.json"};
  return std::ranges::find(known, name) != known.end() || name.starts_with("tokenizer") ||
         name.ends_with(".jinja");
}

std::map<std::string, std::string> tokenizer_files(const Recipe& recipe, const DatasetSection& section) {
  const std::filesystem::path path = existing_tokenizer_path(recipe, section);
  auto files = read_companion_files(folder_of(path));
  std::erase_if(files, [](const auto& file) { return !is_tokenizer_file(file.first); });
  if (std::filesystem::is_regular_file(path))
    files["tokenizer.json"] = read_text_file(path, JsonLimits{}.max_bytes);
  return files;
}

void check_vocabulary(const DatasetSection& section, const std::optional<Tokenizer>& tokenizer,
                      const Dataset& dataset, std::int64_t vocab_size) {
  if (tokenizer) return check_vocabulary(*tokenizer, vocab_size);
  if (section.kind == DatasetKind::mock)
    require(*section.vocab_size <= vocab_size, "mock data set: vocab_size is ", *section.vocab_size,
            ", the model's is ", vocab_size, "; want at most that");
  if (section.kind != DatasetKind::tokens) return;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    const Sample sample = dataset.sample(i);
    for (const auto* ids : {&sample.input_ids, &sample.labels})
      for (const std::int64_t id : *ids)
        require(id < vocab_size, section.path, ": row ", i, " holds token id ", id,
                ", the model's vocab_size is ", vocab_size);
  }
}

SquadOptions squad_options(const DatasetSection& section) {
  SquadOptions options;
  options.dataset_name = dataset_file(section).string();
  options.split = section.split.value_or("train");
  options.limit_dataset_samples = section.limit_dataset_samples;
  options.answer_start = section.answer_start;
  options.rows = row_options(section);
  return options;
}

std::shared_ptr<const Dataset> recipe_dataset(const Recipe& recipe, const DatasetSection& section,
                                              const std::optional<Tokenizer>& tokenizer, bool packed) {
  auto rows = unpacked(recipe, section, tokenizer);
  const PackedSequenceSection& packing = recipe.packed_sequence;
  if (!packed || packing.packed_sequence_size == 0) return rows;
  PackOptions options;
  options.pack_size = packing.packed_sequence_size;
  options.strategy = packing.packing_strategy;
  options.max_packs = packing.max_packs;
  options.drop_long = packing.drop_long_samples;
  TaskProgress progress("packing", "rows");
  options.on_rows = std::ref(progress);
  return std::make_shared<PackedDataset>(rows, options);
}

}  // namespace nemocube
