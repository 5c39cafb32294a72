#pragma once
#include "data/json/json.h"

/// Keys of a message that say whether it is a target.
namespace nemocube {

/// False where one of the keys `weight` (OpenAI's), `train` or `loss_mask` of a message is 0 or false.
bool is_trained(const Json& message);

/// Checks these keys of a message: values for the assistant are 0, 1, true, false or null. Warns once for
/// each file of a message of another role that asks to be a target, and of keys by which other programs weigh
/// messages and that have no effect here. Throws Error naming the key.
void check_turn_weight(const JsonView& message, bool assistant);

}  // namespace nemocube
