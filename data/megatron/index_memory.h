#pragma once
#include <string>

namespace nemocube {

/// Called before an index of so many bytes is filled. Throws Error "what: ..." naming both amounts when the
/// process cannot have as much memory, so that nothing is filled for minutes until the system ends the
/// process.
void require_index_memory(const std::string& what, double bytes);

}  // namespace nemocube
