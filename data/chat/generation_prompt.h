#pragma once
#include "data/chat/chat_tokens.h"

namespace nemocube {

/// Takes what the template's generation prompt supplies out of tokens.assistant: the header of each turn of the assistant and
/// what the template writes behind it without being asked, such as <think></think>. Nothing that the model wrote is taken out.
///
/// As NeMo AutoModel's mask_generation_prompt (after commit 36044ad3): the messages before a turn are rendered with the
/// generation prompt, once with enable_thinking true and once false; of the ids that it adds, those with which the turn begins
/// are the template's. They end at the latest where renderings of the turn begin to differ in which its text, reasoning
/// included, is empty, "0" or "1", and its calls are left out.
///
/// Turns that no target is left of, or in front of which none is left, are not looked at. A turn stays as it is where it is
/// the first message, or where the messages before it are written in another way once it follows; returns whether there was
/// one.
bool unmark_generation_prompts(ChatTokens& tokens, const ChatTemplate& chat_template,
                               const Tokenizer& tokenizer, const Chat& chat);

}  // namespace nemocube
