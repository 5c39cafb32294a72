#pragma once
#include "data/chat/chat_tokens.h"

namespace nemocube {

/// Takes the tokens of the template's generation prompt out of tokens.assistant: the header of each
/// turn of the assistant and text that the template adds behind the header, such as
/// <think></think>. Tokens that the model wrote stay.
///
/// As NeMo AutoModel's mask_generation_prompt (0.7.0): the messages before a turn are rendered without and
/// with the generation prompt, once with enable_thinking true and once false. A prompt counts where it only
/// adds ids and the turn begins with all of them; of two such prompts the longer one counts.
///
/// Turns without any target left, or with no target left before them, are skipped. A turn stays as it is
/// where it is the first message, or where the ids of the messages before it are not the beginning of the
/// conversation's ids; returns whether there was such a turn.
bool unmark_generation_prompts(ChatTokens& tokens, const ChatTemplate& chat_template,
                               const Tokenizer& tokenizer, const Chat& chat);

}  // namespace nemocube
