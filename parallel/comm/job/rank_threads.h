#pragma once
#include <sched.h>

#include <cstddef>
#include <span>

namespace nemocube {

/// The number of threads for one of the ranks of a machine: each CPU that its binding allows counts as
/// 1 / (number of ranks whose binding allows it), and the sum is rounded down; at least 1. So ranks with CPUs
/// of their own use all of these CPUs, and ranks that share all CPUs of a machine divide them.
int rank_threads(std::span<const cpu_set_t> bindings, std::size_t rank);

}  // namespace nemocube
