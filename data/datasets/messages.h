#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/template_files.h"
#include "data/datasets/chat_messages.h"
#include "data/datasets/chat_row.h"
#include "data/datasets/row_source.h"
#include "data/tokenizer/tokenizer.h"

/// Conversations. With a chat template read_chat_row() and chat_row() make
/// the rows. Without a template the text is
///
///     System: {content}\nUser: {content}\nAssistant: {content}{EOS}\nUser: ...
///
/// Targets are the contents of the assistant's turns that are trained, each from the first token that holds a
/// byte of the content to the EOS after the content (see append_eos). White space around contents is removed.
/// Turns after the assistant's last turn are left out, because they hold no target.
namespace nemocube {

enum class Role { system, user, assistant, tool };

struct Turn {
  Role role = Role::user;
  std::string content;
  bool trained = true;  ///< is_trained()
};

struct Conversation {
  std::string id;  ///< the row's `id`, or "row 7" (counted from 0)
  std::vector<Turn> turns;
};

/// A row has one of these lists:
///     messages        {role, content}; content is a string, null, or a list of text parts, joined by a space
///     conversations   {from, value}; from is a name of speakers(), but not one for tool calls
/// `number` counts the rows of all files from 0. Throws Error naming file and row. Rows with tool calls are
/// errors, because this form cannot express them. For rows of another form the message lists the accepted
/// forms.
Conversation read_conversation(const JsonView& row, std::int64_t number);

struct MessagesOptions {
  std::vector<std::filesystem::path> files{};
  RowSelection selection{};
  /// Leave out rows of another form, lines that are not JSON, and rows that the template refuses.
  bool skip_invalid_samples = false;
  std::optional<ChatTemplates> chat_templates{};
  ChatRowOptions
      chat{};  ///< without a template, only mask_history: only the last turn of the assistant is a target
  ToolArguments tool_arguments = ToolArguments::as_given;  ///< with a template
  RowOptions rows{};  ///< Truncation::context is an Error: a conversation has no context
};

/// Without a chat template.
TokenRow conversation_row(const Conversation& conversation, const Tokenizer& tokenizer,
                          const MessagesOptions& options);

/// Throws Error for Truncation::context.
RowSource messages_rows(const Tokenizer& tokenizer, const MessagesOptions& options);

}  // namespace nemocube
