#pragma once
#include <string>

namespace nemocube {

/// Called before an index of `bytes` is filled. Throws Error "what: ..." naming both
/// amounts when the process cannot have this much memory. Without the check, minutes
/// could pass until the system ends the process.
void require_index_memory(const std::string& what, double bytes);

}  // namespace nemocube
