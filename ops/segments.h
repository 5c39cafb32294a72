#pragma once
#include <cstdint>

namespace nemocube {

/// Sums over token rows are formed in segments of so many rows (ops/reduce.h).
constexpr std::int64_t segment_rows = 64;
inline std::int64_t segments_of(std::int64_t rows) { return (rows + segment_rows - 1) / segment_rows; }

}  // namespace nemocube
