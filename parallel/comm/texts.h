#pragma once
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace nemocube {

/// The text of rank `root`, on every rank of the group; the texts of others are ignored.
std::string broadcast_text(Communicator& group, const std::string& text, int root);
/// The texts of all ranks, in their order.
std::vector<std::string> all_gather_texts(Communicator& group, const std::string& text);

}  // namespace nemocube
