#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace nemocube {

/// A rendered conversation, its ids, and which of them are the assistant's.
struct ChatTokens {
  std::string text;
  std::vector<std::int64_t> ids;
  std::vector<bool> assistant;
};

/// Ids are those of the text without the special tokens that the tokenizer would put around it: templates write their
/// own. Which of them are the assistant's:
/// With {% generation %} blocks in the template: the tokens from the one with a block's first character to the one
/// with its last (of a character that several tokens share, the first), as transformers' assistant mask. As there, a
/// block that ends within the first token reaches to the end.
/// Without: for each message of the assistant the tokens between the length of the rendering of all messages before it
/// and that with it, both without generation prompt, as NeMo AutoModel does; what the template writes in front of an
/// answer belongs to it. Throws Error when the ids of such a shorter conversation are not the beginning of the whole
/// one's, an EOS at their end aside. The Error names the number of messages and the token.
ChatTokens chat_tokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Chat& chat);

}  // namespace nemocube
