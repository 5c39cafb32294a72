#pragma once
#include "parallel/comm/world.h"

namespace nemocube::testing {

/// The ranks that test_comm runs on. A test in a file *_ranks_test.cpp runs on all of them at the same time,
/// and its ranks make the same calls.
World& test_world();

}  // namespace nemocube::testing
