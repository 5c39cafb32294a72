#pragma once
#include <cstdint>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace nemocube {

/// The ids of a conversation, and which of them are the assistant's.
struct ChatTokens {
  std::vector<std::int64_t> ids;
  std::vector<bool> assistant;
};

/// Ids of the rendered text, without the special tokens that the tokenizer would put around it: templates write their
/// own.
std::vector<std::int64_t> chat_ids(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                   const Chat& chat);

/// The ids with a mask.
/// With {% generation %} blocks in the template: the tokens from the one with a block's first character to the one
/// with its last (of a character that several tokens share, the first), as transformers' assistant mask. As there, a
/// block that ends within the first token reaches to the end.
/// Without: for each message of the assistant the tokens between the length of the rendering of all messages before it
/// and that with it, both without generation prompt, as NeMo AutoModel does; what the template writes in front of an
/// answer belongs to it. Throws Error naming the message where the ids of a shorter conversation, but for an EOS at their
/// end, are not the beginning of the whole one's.
ChatTokens chat_tokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Chat& chat);

}  // namespace nemocube
