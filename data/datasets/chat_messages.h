#pragma once
#include <string>

#include "data/json/json.h"

namespace nemocube {

struct Chat;  // data/chat/chat.h

/// How a template sees the arguments of tool calls.
enum class ToolArguments {
  as_given,  ///< objects stay objects, for templates that go through the arguments
  text,      ///< as its JSON text, as NeMo AutoModel's ChatDataset gives it to every template
};

/// A row with `messages` or `conversations`, see messages.h, as a conversation for a chat template, by the
/// rules of NeMo AutoModel's ChatDataset:
///   - there is a message
///   - roles are system, user, assistant and tool; `conversations` spells them as speakers() says
///   - content is a text; null becomes "", a list of text parts their texts with a space between
///   - an assistant's `reasoning_content` is a text; null becomes ""
///   - a tool call has a function with a name, and perhaps arguments; id
///     call_0, call_1... and type "function" are added
///   - a message of a tool has a tool_call_id
///   - `tools` is a list or the JSON text of one; an empty one, an empty text and the text null count as none
/// Calls and results among `conversations` become messages by the rules of AutoModel's agent_chat: calls that
/// follow one another, or a text of the assistant without calls, are one message, and results take the ids of
/// the last calls in order. Other keys of messages go to the template unchanged, also keys of
/// `conversations`; check_turn_weight() holds for each message. `chat_template_kwargs` become
/// Chat::variables. Throws Error naming file, row and key.
Chat read_chat_row(const JsonView& row, ToolArguments arguments);

/// The text of a turn's content: a string, "" for null, or text parts joined by a space.
std::string content_text(const JsonView& turn, const std::string& key);

}  // namespace nemocube
