#pragma once
#include <doctest/doctest.h>

#include <initializer_list>

#include "parallel/comm/world.h"

namespace nemocube::testing {

/// The ranks that test_comm runs on. A test in a file *_ranks_test.cpp runs on all of them at the same time,
/// and its ranks make the same calls.
World& test_world();

/// A decorator of long cases of test_comm, for the numbers of ranks where their paths differ:
///     TEST_CASE("checkpoints of ranks: .." * on_ranks({2, 8})) {
/// doctest counts the case as skipped on other numbers of ranks. A case without the decorator runs on all,
/// and so do all cases with NEMOCUBE_RANKS=all in the environment.
doctest::skip on_ranks(std::initializer_list<int> numbers);

}  // namespace nemocube::testing
