#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "data/json/json.h"
#include "model/config.h"

/// Hugging Face's config.json of a language model: the part that every family has. The folder of a family
/// (data/hf/families) has the rest.
///
/// family      `model_type`, or without one the classes in `architectures`
/// tokens      pad_token_id, bos_token_id, eos_token_id (an id or a list): null and -1 are no token
/// dtype       `dtype`, or `torch_dtype`; both may be present if they agree
/// aliases     a key and its alias may both be present if they agree
/// integers    a list of equal numbers, one for each block, counts as that number
/// infinity    the bare token Infinity, {"__float__": "Infinity"}, or any number of at least 1e30
/// parts       of a model of several parts the config of its language model is read (data/hf/language_part.h)
/// refused     models of other families and configs that would be misread, see family_of_language_model()
///
/// Absent keys have the defaults of ModelConfig. null counts as absent. Keys that do not shape the model are
/// not read.
namespace nemocube {

/// A config and the text it came from, so that a fine-tuned model can be saved with the same text.
struct HfConfigFile {
  ModelConfig config;
  std::string text;
};

/// Reads `path`, or config.json in `path` when it is a directory. The config is valid. Throws Error naming
/// the file, the key, the accepted values and the given value.
HfConfigFile read_hf_config_file(const std::filesystem::path& path);
ModelConfig read_hf_config(const std::filesystem::path& path);
/// The same for an object inside another document.
ModelConfig parse_hf_config(const JsonView& object);

/// config.json for a model that did not come from a file.
HfConfigFile make_hf_config(const ModelConfig& config);
/// The text of a config.json with its dtype replaced, under the key that the text has (`torch_dtype` if it
/// has none). Returns the text unchanged when it already has this dtype.
std::string with_dtype(const std::string& text, DType dtype);

/// Ids that end a generated text: from generation_config.json in `directory`
/// when it has any, otherwise from the config.
std::vector<std::int64_t> end_of_text_ids(const std::filesystem::path& directory, const ModelConfig& config);
/// The text of a generation_config.json in which these ids end a generated text. `text` "" stands for a new
/// file, which gets the config's other ids, too.
std::string with_end_of_text_ids(const std::string& text, const ModelConfig& config,
                                 const std::vector<std::int64_t>& ids);

}  // namespace nemocube
