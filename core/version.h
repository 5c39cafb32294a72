#pragma once

#include <string_view>

namespace nemocube {

/// Version and commit that this program was built from: "0.1.0 (1a2b3c4)", "0.1.0 (1a2b3c4-dirty)" when
/// tracked files differed from that commit, "0.1.0" when the sources were no git checkout. The definition is
/// written at build time from core/version.cpp.in; a new commit compiles that one file anew.
std::string_view version();

}  // namespace nemocube
