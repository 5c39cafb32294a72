#pragma once
#include <cstdint>
#include <vector>

namespace nemocube {

/// 0 ... rows - 1 in random order, the same on every machine: a Fisher-Yates shuffle whose swap of place i,
/// from rows - 1 down to 1, takes draw i of the Philox stream (seed, "permutation").
std::vector<std::int64_t> permutation(std::int64_t rows, std::uint64_t seed);

}  // namespace nemocube
