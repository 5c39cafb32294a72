#pragma once
#include <string>

namespace nemocube {

/// The name of this machine as its kernel has it (gethostname(2)), cut
/// after 255 bytes; `unknown` without a name.
std::string host_name(const std::string& unknown);

}  // namespace nemocube
