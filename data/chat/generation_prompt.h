#pragma once
#include "data/chat/chat_tokens.h"

namespace nemocube {

/// Takes what the template's generation prompt supplies out of tokens.assistant: the header of each turn of
/// the assistant and what the template writes behind it without being asked, such as <think></think>. Nothing
/// that the model wrote is taken out.
///
/// As NeMo AutoModel's mask_generation_prompt (0.7.0): the messages before a turn are rendered without and
/// with the generation prompt, this once with enable_thinking true and once false. A prompt counts where it
/// only adds ids, and where the turn begins with all of these; the longer one counts.
///
/// Turns that no target is left of, or in front of which none is left, are not looked at. A turn stays as it
/// is where it is the first message, or where the ids of the messages before it are not the beginning of the
/// conversation's; returns whether there was one.
bool unmark_generation_prompts(ChatTokens& tokens, const ChatTemplate& chat_template,
                               const Tokenizer& tokenizer, const Chat& chat);

}  // namespace nemocube
