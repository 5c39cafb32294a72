#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace nemocube {

/// A rendered conversation, its ids, and which ids are the assistant's.
struct ChatTokens {
  std::string text;
  std::vector<std::int64_t> ids;
  std::vector<bool> assistant;
};

/// Which of the assistant's tokens are wanted.
struct ChosenTurns {
  /// Only the last run of the assistant's tokens. Without blocks the run is found from its two ends, so the
  /// template may write earlier turns in another way.
  bool last_run = false;
  /// Called with the number of a message of the assistant: false leaves its tokens out. The
  /// blocks of a message are the ones that a rendering of the messages up to and including it
  /// adds to a rendering of the messages before it.
  std::function<bool(std::size_t message)> wanted = {};
};

/// The text is tokenised without the special tokens that the tokenizer would put around
/// it: templates write their own. The assistant's ids: With {% generation %} blocks in
/// the template: ids that overlap a block, as in transformers' assistant mask since 5.24,
/// by ranges of Tokenizer::encode_with_library_offsets(). An empty block marks the token
/// that it lies inside of. Without: for each message of the assistant, the ids that a
/// rendering with this message adds to a rendering of the messages before it, both
/// without generation prompt, as in NeMo AutoModel; text that the template writes in
/// front of an answer belongs to the answer. Throws Error when the ids of such a shorter
/// conversation are not the beginning of the whole one's, an EOS at their end aside. The
/// Error names the number of messages and the token.
ChatTokens chat_tokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Chat& chat,
                       const ChosenTurns& turns = {});

/// Keeps the last run of true.
void keep_last_run(std::vector<bool>& mask);

/// The messages before `count`, without generation prompt.
Chat first_messages(const Chat& chat, std::size_t count);

/// Whether `ids` are the beginning of `whole`, an EOS at their end aside.
bool begins(const std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& whole,
            const Tokenizer& tokenizer);

}  // namespace nemocube
