#include "train/datasets/recipe_datasets.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "data/datasets/column_mapped.h"
#include "data/datasets/hellaswag.h"
#include "data/datasets/json_rows.h"
#include "data/datasets/messages.h"
#include "data/datasets/mock.h"
#include "data/datasets/packing.h"
#include "data/datasets/streamed_rows.h"
#include "data/datasets/tokens.h"
#include "data/files/regular_file.h"
#include "data/hf/hf_weights.h"
#include "data/megatron/megatron_dataset.h"
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
  rows.keep_last = section.unshifted;
  return rows;
}

// The ids of the model are used when the tokenizer's files name none.
RowOptions row_options(const DatasetSection& section, const ModelConfig* model) {
  RowOptions rows = row_options(section);
  if (!model) return rows;
  if (!model->eos_token_id.empty()) rows.eos_id = model->eos_token_id[0];
  rows.pad_id = model->pad_token_id;
  return rows;
}

RowSelection selection_of(const DatasetSection& section) {
  RowSelection selection;
  selection.split = section.split.value_or("train");
  selection.limit_dataset_samples = section.limit_dataset_samples;
  selection.limit_key = section.limit_key;
  if (section.shuffle_seed) selection.shuffle_seed = static_cast<std::uint64_t>(*section.shuffle_seed);
  return selection;
}

MessagesOptions messages_options(const Recipe& recipe, const DatasetSection& section,
                                 const ModelConfig* model) {
  MessagesOptions options;
  options.files = dataset_files(section);
  options.selection = selection_of(section);
  options.skip_invalid_samples = section.skip_invalid_samples;
  options.chat_templates = recipe_chat_templates(recipe, section);
  options.chat.mask_history = section.mask_history;
  options.chat.mask_reasoning_content = section.mask_reasoning_content;
  options.chat.mask_generation_prompt = section.mask_generation_prompt;
  options.chat.mask_order = section.mask_order;
  options.tool_arguments = section.tool_call_arguments;
  options.rows = row_options(section, model);
  require(
      options.chat_templates || !section.mask_reasoning_content, section.key,
      ".mask_reasoning_content: rows without a chat template hold no reasoning; remove the key, or give a "
      "chat_template");
  require(
      options.chat_templates || !section.mask_generation_prompt, section.key,
      ".mask_generation_prompt: rows without a chat template have no generation prompt; remove the key, or "
      "give a chat_template");
  return options;
}

ColumnMappedOptions column_mapped_options(const Recipe& recipe, const DatasetSection& section,
                                          const ModelConfig* model) {
  ColumnMappedOptions options;
  options.files = dataset_files(section);
  options.mapping = section.column_mapping;
  options.selection = selection_of(section);
  options.answer_only_loss_mask = section.answer_only_loss_mask;
  options.answer_start = section.answer_start;
  options.chat_template = recipe_chat_template(recipe, section);
  options.rows = row_options(section, model);
  return options;
}

HellaSwagOptions hellaswag_options(const DatasetSection& section, const ModelConfig* model) {
  const RowOptions rows = row_options(section, model);
  HellaSwagOptions options;
  options.files = dataset_files(section);
  options.selection = selection_of(section);
  options.separator = section.separator;
  options.pad_to_max_length = section.pad_to_max_length;
  options.append_eos = rows.append_eos;
  options.eos_id = rows.eos_id;
  options.pad_id = rows.pad_id;
  return options;
}

/// The number of samples that the recipe asks for; nothing: those of one time over the tokens.
std::optional<std::int64_t> megatron_samples(const Recipe& recipe, const DatasetSection& section) {
  if (section.splits_to_build == MegatronSplit::validation) return section.num_val_samples;
  if (section.splits_to_build == MegatronSplit::test) return section.num_test_samples;
  const auto steps = recipe.step_scheduler.max_steps;
  std::optional<std::int64_t> wanted;
  const std::int64_t rows = recipe.step_scheduler.global_batch_size;
  require(!steps || *steps <= MegatronOptions::max_samples / rows,
          "step_scheduler.max_steps: ", steps.value_or(0), " steps of ", rows,
          " rows take more samples than ", section.key, " can have, ", MegatronOptions::max_samples);
  if (steps) wanted = *steps * rows;
  if (!section.num_train_samples) return wanted;
  require(!wanted || *section.num_train_samples >= *wanted, section.key, ".num_train_samples: ", *steps,
          " steps take ", wanted.value_or(0), " samples; want that many or more, got ",
          *section.num_train_samples);
  return section.num_train_samples;
}

MegatronOptions megatron_options(const Recipe& recipe, const DatasetSection& section,
                                 const ModelConfig* model) {
  MegatronOptions options;
  options.paths = section.paths;
  options.split = section.splits_to_build;
  options.shares = section.split.value_or(options.shares);
  options.seq_length = section.seq_length.value_or(options.seq_length);
  options.samples = megatron_samples(recipe, section);
  options.seed = static_cast<std::uint32_t>(section.seed);
  if (model) options.id_limit = model->vocab_size;
  return options;
}

/// Progress of one piece of work after another, each from 0 on.
class ProgressOfEach {
 public:
  explicit ProgressOfEach(std::string unit) : unit_(std::move(unit)) {}
  void operator()(std::int64_t done, std::int64_t total) {
    if (!shown_ || done < done_) shown_.emplace("data", unit_);
    done_ = done;
    (*shown_)(done, total);
  }

 private:
  std::string unit_;
  std::optional<TaskProgress> shown_;
  std::int64_t done_ = 0;
};

std::shared_ptr<const Dataset> streamed(RowSource source, Communicator* ranks) {
  ProgressOfEach reading("bytes"), tokenising("rows");
  StreamedRows::Options options;
  options.on_bytes = std::ref(reading);
  options.on_rows = std::ref(tokenising);
  options.ranks = ranks;
  return std::make_shared<StreamedRows>(std::move(source), options);
}

std::shared_ptr<const Dataset> rows_of(const DatasetSection& section, RowSource source, Communicator* ranks) {
  if (bytes_to_stream(section)) return streamed(std::move(source), ranks);
  return rows_in_memory(source);
}

std::shared_ptr<const Dataset> unpacked(const Recipe& recipe, const DatasetSection& section,
                                        const std::optional<Tokenizer>& tokenizer, const ModelConfig* model,
                                        Communicator* ranks) {
  switch (section.kind) {
    case DatasetKind::squad: {
      SquadOptions options = squad_options(section);
      options.rows = row_options(section, model);
      tell_unused_chat_template(recipe, section);
      options.chat_template = recipe_chat_template(recipe, section);
      if (bytes_to_stream(section)) return streamed(squad_rows(*tokenizer, options), ranks);
      return make_squad_dataset(*tokenizer, options);
    }
    case DatasetKind::messages:
      return rows_of(section, messages_rows(*tokenizer, messages_options(recipe, section, model)), ranks);
    case DatasetKind::column_mapped:
      return rows_of(section, column_mapped_rows(*tokenizer, column_mapped_options(recipe, section, model)),
                     ranks);
    case DatasetKind::hellaswag:
      return rows_of(section, hellaswag_rows(*tokenizer, hellaswag_options(section, model)), ranks);
    case DatasetKind::megatron:
      return make_megatron_dataset(megatron_options(recipe, section, model));
    case DatasetKind::mock: {
      MockOptions options;
      options.vocab_size = *section.vocab_size;
      options.seq_length = section.seq_length.value_or(1024);
      options.num_samples = section.limit_dataset_samples.value_or(section.num_samples);
      options.seed = static_cast<std::uint64_t>(recipe.seed);
      return std::make_shared<MockDataset>(options);
    }
    case DatasetKind::tokens:
      return std::make_shared<TokensDataset>(dataset_file(section), section.limit_dataset_samples);
  }
  throw std::logic_error("dataset kind");
}

}  // namespace

std::optional<Tokenizer> recipe_tokenizer(const Recipe& recipe, const DatasetSection& section) {
  if (section.kind == DatasetKind::mock || section.kind == DatasetKind::tokens) return std::nullopt;
  const bool optional = section.kind == DatasetKind::megatron && !section.tokenizer && !recipe.tokenizer;
  return optional ? std::nullopt : std::optional(Tokenizer::load(existing_tokenizer_path(recipe, section)));
}

std::optional<std::int64_t> bytes_to_stream(const DatasetSection& section) {
  constexpr std::array of_json{DatasetKind::squad, DatasetKind::messages, DatasetKind::column_mapped,
                               DatasetKind::hellaswag};
  if (std::ranges::find(of_json, section.kind) == of_json.end() || section.streaming == false)
    return std::nullopt;
  std::int64_t bytes = 0;
  bool by_line = true;
  for (const std::filesystem::path& file : dataset_files(section)) {
    by_line = by_line && has_rows_by_line(file);
    bytes += RegularFile(file).size();
  }
  const bool streams = section.streaming.value_or(by_line && bytes >= streamed_bytes);
  return streams ? std::optional(bytes) : std::nullopt;
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
  if (section.chat_template && *section.chat_template)
    files["chat_template.jinja"] = chosen_template(folder_of(path), *section.chat_template, false).source;
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
        require(id < vocab_size, dataset_file(section).string(), ": row ", i, " holds token id ", id,
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
                                              const std::optional<Tokenizer>& tokenizer,
                                              const ModelConfig* model, bool packed, Communicator* ranks) {
  auto rows = unpacked(recipe, section, tokenizer, model, ranks);
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
