#include "train/datasets/chat_template.h"

#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/json/json.h"
#include "train/recipe/files.h"

namespace nemocube {

std::optional<std::filesystem::path> find_chat_template(const std::filesystem::path& tokenizer) {
  const std::filesystem::path folder = folder_of(tokenizer);
  for (const char* name : {"chat_template.jinja", "chat_template.json"})
    if (std::filesystem::exists(folder / name)) return folder / name;
  std::filesystem::path config = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return std::nullopt;
  const Json json = read_json_file(config);
  const auto found = json.is_object() ? json.find("chat_template") : json.end();
  if (found == json.end() || found->is_null()) return std::nullopt;
  return config;
}

void check_chat_template(const DatasetSection& section, const std::filesystem::path& tokenizer) {
  const std::string key = section.key + ".chat_template";
  if (section.chat_template) {
    require(!section.chat_template->has_value(), key,
            ": chat templates are not in this build; want null, which trains without one");
    return;
  }
  const auto file = find_chat_template(tokenizer);
  if (!file) return;
  if (section.kind == DatasetKind::squad && section.truncation && section.seq_length) {
    log_info(section.key, ": truncation to seq_length, so the rows get no chat template; that of ",
             file->string(), " is not used");
    return;
  }
  fail(key, " is absent, and the tokenizer has a chat template (", file->string(),
       "), which NeMo AutoModel would apply to the rows. Chat templates are not in this build; to train "
       "without "
       "one, set ",
       key, ": null (--set ", key, "=null)");
}

}  // namespace nemocube
