#pragma once
#include <filesystem>
#include <vector>

#include "data/chat/chat.h"

namespace nemocube {

struct NamedChat {
  std::string place;  ///< file and row, for messages
  Chat chat;
};

/// Reads a list, or the JSON text of a list. Nothing for an empty text and the
/// text null. Throws Error naming the value.
std::optional<Json> read_json_list(const JsonView& list);

/// The key `chat_template_kwargs` of a row becomes chat.variables. Throws Error naming the key where its
/// value is no object.
void read_template_kwargs(const JsonView& row, Chat& chat);

/// Reads conversations from a file in one of the forms of for_each_row(). A row is a list of messages, or an
/// object with `messages` and, where wanted, `tools`, `documents`, `add_generation_prompt` and
/// `chat_template_kwargs`. Each of the three lists may be given as its JSON text. Rows that are messages
/// themselves (objects with `role`) make one conversation together. Throws Error naming file and row.
std::vector<NamedChat> read_chats(const std::filesystem::path& path);

}  // namespace nemocube
