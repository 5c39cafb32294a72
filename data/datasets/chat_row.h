#pragma once
#include <string>

#include "data/chat/chat_template.h"
#include "data/datasets/row.h"
#include "data/tokenizer/tokenizer.h"

/// Rows that a chat template writes.
namespace nemocube {

/// Which mask is applied first where both are asked for.
enum class MaskOrder {
  history_first,    ///< all of the last turn but its reasoning is a target
  reasoning_first,  ///< as NeMo AutoModel's ChatDataset does: the last turn loses tokens before its reasoning
};

struct ChatRowOptions {
  /// False: every token is a target where the template has no {% generation %} blocks.
  bool answer_only = true;
  bool mask_history = false;            ///< only the last run of targets, the assistant's last turn, stays
  bool mask_reasoning_content = false;  ///< the assistant's reasoning is no target
  bool mask_generation_prompt = false;  ///< see unmark_generation_prompts()
  MaskOrder mask_order = MaskOrder::history_first;
};

/// The ids of chat_tokens(); the assistant's are the targets, but for turns that are not is_trained(). No EOS
/// is appended, because the template ends its turns.
///
/// The reasoning of a message is found by a rendering of the conversation without this message's reasoning:
/// the tokens of the conversation between the longest common beginning and the longest common end. Without a
/// difference there are none. Throws Error naming the row when the template fails.
TokenRow chat_row(const std::string& id, const Chat& chat, const ChatTemplate& chat_template,
                  const Tokenizer& tokenizer, const ChatRowOptions& options = {});

}  // namespace nemocube
