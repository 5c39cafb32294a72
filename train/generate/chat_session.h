#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/chat/chat.h"
#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "train/generate/generate.h"

namespace nemocube {

struct ChatSettings {
  GenerateOptions generate{};       ///< max_new_tokens counts for each answer
  std::string system{};             ///< the system's message; "" is none
  Json variables = Json::object();  ///< Chat::variables
  bool show_special = false;        ///< whether special tokens are shown
};

/// A conversation with a model. Every answer is generated from the whole conversation, as the chat template
/// writes it, up to the beginning of the answer.
class ChatSession {
 public:
  struct Answer {
    bool whole = true;  ///< false: ended by max_new_tokens or by the end of the context
    std::string text{};
  };

  ChatSession(ParallelModel& model, Tokenizer tokenizer, ChatTemplate chat_template, ChatSettings settings);

  /// Answers the user's text and passes pieces of the answer on as they come. Both become part of
  /// the conversation: the answer with its special tokens, but without the ending one. Answer n
  /// (counted from 0) draws with seed settings.generate.seed + n. Throws Error when the template
  /// fails or the conversation leaves no room for an answer in the model's context
  /// (max_position_embeddings); the conversation is then as it was before.
  Answer answer(const std::string& text, const std::function<void(std::string_view)>& on_text);

  /// Only the system's message stays.
  void clear();

 private:
  std::vector<std::int64_t> prompt_ids(const Chat& chat) const;
  ParallelModel& model_;
  Tokenizer tokenizer_;
  ChatTemplate template_;
  ChatSettings settings_;
  Chat chat_;
  std::uint64_t answers_ = 0;
};

}  // namespace nemocube
