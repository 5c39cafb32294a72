#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace nemocube {

/// The token that a template writes at the end of the assistant's turns, where it writes none of
/// `stop_ids` there: the last special token behind the answer of a short conversation, or else the
/// last added token. A model that is trained on such turns, or generates them, goes on behind its
/// answers unless this token stops it, too. Nothing where the template writes one of `stop_ids` or no
/// such token, or refuses the conversation.
std::optional<std::int64_t> end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                        std::span<const std::int64_t> stop_ids);

}  // namespace nemocube
