#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/datasets/squad.h"
#include "data/loader/loader.h"
#include "model/config.h"
#include "parallel/comm/communicator.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The tokenizer that a dataset section asks for; nothing for data that already consists of tokens (mock,
/// tokens), or for megatron, unless the recipe names one.
std::optional<Tokenizer> recipe_tokenizer(const Recipe& recipe, const DatasetSection& section);

/// Whether a file in a model's folder belongs to the tokenizer (chat templates do).
bool is_tokenizer_file(const std::string& name);
/// Name and text of the tokenizer files that are saved with a model. A chat template that the section names
/// becomes the tokenizer's own, chat_template.jinja. pre: the section has a tokenizer
std::map<std::string, std::string> tokenizer_files(const Recipe& recipe, const DatasetSection& section);

/// The data set of a section, packed if `packed` is true and the recipe packs. `tokenizer` belongs to the
/// section, `model` to the recipe; null: none. The model's EOS and padding count where the tokenizer names
/// none. Where bytes_to_stream() has a value the rows are StreamedRows, which all `ranks` make together
/// (null: this rank alone).
std::shared_ptr<const Dataset> recipe_dataset(const Recipe& recipe, const DatasetSection& section,
                                              const std::optional<Tokenizer>& tokenizer,
                                              const ModelConfig* model, bool packed,
                                              Communicator* ranks = nullptr);

/// Bytes of the section's files where its rows are streamed: `streaming` is true, or absent and the files are
/// JSON lines that together have at least streamed_bytes. Otherwise nothing.
std::optional<std::int64_t> bytes_to_stream(const DatasetSection& section);
inline constexpr std::int64_t streamed_bytes = std::int64_t{1} << 30;

/// Throws Error when the data can hold token ids of `vocab_size` or more: a tokenizer or a mock data set with
/// a larger vocabulary, or an id in a tokens file, of which every row is read.
void check_vocabulary(const DatasetSection& section, const std::optional<Tokenizer>& tokenizer,
                      const Dataset& dataset, std::int64_t vocab_size);

/// Which questions a squad section selects.
SquadOptions squad_options(const DatasetSection& section);

}  // namespace nemocube
