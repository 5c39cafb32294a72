#pragma once
#include <cstdint>
#include <vector>

#include "core/range.h"
#include "ops/sequences.h"

namespace nemocube {

/// The slopes m of ALiBi for n heads: the score of a key at distance d falls by m_h d.
///     n a power of two:  m_h = 2^(-8 (h + 1) / n), h = 0, 1, ...
///     else, with c the greatest power of two below n: those of c heads, then 2^(-4 (2 k + 1) / c) for
///     k = 0, 1, ..., n - c - 1
/// pre: n >= 1
/// Source: "Train Short, Test Long" (Press et al., 2022), and the authors' code for other n; Baichuan 13B
std::vector<float> alibi_slopes(std::int64_t n);
/// Those of these heads, f32 on a device. `rows` keeps them for all layers.
Tensor alibi_slopes(std::int64_t n, const Range& heads, const Sequences& rows, Device device);

}  // namespace nemocube
