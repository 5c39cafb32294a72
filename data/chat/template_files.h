#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "data/chat/chat_template.h"

/// Chat templates where transformers looks for them.
namespace nemocube {

struct StoredTemplate {
  std::string place;  ///< the file, with the key where the file is JSON
  std::string source;
};

/// The templates in the folder of a tokenizer, by name; a single one is "default". chat_template.jinja
/// ("default") and additional_chat_templates/NAME.jinja replace the key `chat_template` of
/// tokenizer_config.json, which is a text, a list of {name, template} or an object with templates by name.
/// chat_template.json, which belongs to processors of images, is not read. Throws Error naming a file of
/// another form.
std::map<std::string, StoredTemplate> stored_templates(const std::filesystem::path& folder);

/// The special tokens that templates know by name: bos_token, eos_token and the other named tokens of
/// tok::read_declared_tokens(). Throws Error naming a file of another form.
ChatTemplate::SpecialTokens special_tokens_of(const std::filesystem::path& folder);

/// The text of the chat template of the tokenizer in `folder`. `wanted`: the name of a stored template; or
/// Jinja text, known by {{ or {%; or a file that holds Jinja, or JSON with a key `chat_template`. Without
/// `wanted`: "tool_use" for a conversation with tools, where such a template is stored, else "default".
/// Throws Error naming the folder and the stored templates when none fits.
StoredTemplate chosen_template(const std::filesystem::path& folder, const std::optional<std::string>& wanted,
                               bool with_tools);

/// The same, parsed, with the tokenizer's special tokens.
ChatTemplate load_chat_template(const std::filesystem::path& folder, const std::optional<std::string>& wanted,
                                bool with_tools);

/// The templates that a tokenizer has for conversations without and with tools; often the same.
struct ChatTemplates {
  ChatTemplate without_tools, with_tools;
  const ChatTemplate& of(const Chat& chat) const;
};

/// Both of load_chat_template().
ChatTemplates load_chat_templates(const std::filesystem::path& folder,
                                  const std::optional<std::string>& wanted);

}  // namespace nemocube
