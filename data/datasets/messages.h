#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/row.h"
#include "data/tokenizer/tokenizer.h"

/// Conversations, written out without a chat template:
///
///     System: {content}\nUser: {content}\nAssistant: {content}{EOS}\nUser: ...
///
/// Targets are the contents of the assistant's turns, each with the EOS behind it (append_eos), from the
/// first token that holds a byte of the content on. Contents are taken without white space around them. Turns
/// after the last one of the assistant are left out: nothing there is a target.
namespace nemocube {

enum class Role { system, user, assistant, tool };

struct Turn {
  Role role = Role::user;
  std::string content;
};

struct Conversation {
  std::string id;  ///< the row's `id`, or "row 7" (counted from 0)
  std::vector<Turn> turns;
};

/// Rows with `messages` (role, content: a string, null, or a list of text parts, joined by a space) or
/// `conversations` (from, value; human and user, gpt, model, bot, chatgpt and assistant, system, tool): a
/// JSON list, {"data": [...]}, one object, or one row to a line (*.jsonl, *.ndjson). Throws Error naming file
/// and row; also for tool calls, which this form cannot write, and, with the accepted forms, for other rows.
std::vector<Conversation> read_conversations(const std::filesystem::path& path, bool skip_invalid = false);

struct MessagesOptions {
  std::string path{};
  std::string split = "train";  ///< its slice counts; the file is `path` whatever the name
  std::optional<std::int64_t> limit_dataset_samples = std::nullopt;
  /// Rows in the order permutation(rows, seed), before the split.
  std::optional<std::uint64_t> shuffle_seed = std::nullopt;
  bool skip_invalid_samples = false;
  bool mask_history = false;  ///< only the last turn of the assistant is a target
  RowOptions rows{};          ///< truncation context: Error, there is none
};

TokenRow conversation_row(const Conversation& conversation, const Tokenizer& tokenizer,
                          const MessagesOptions& options);

std::shared_ptr<const RowDataset> make_messages_dataset(const Tokenizer& tokenizer,
                                                        const MessagesOptions& options);

}  // namespace nemocube
