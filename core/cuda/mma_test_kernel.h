#pragma once
#include "core/cuda/module.h"
#include "core/tensor.h"

namespace nemocube::cuda {

/// For the test of core/cuda/mma.cuh: products of matrices of n x n, n one of 16, 32, 48, 80 and 128. a, b
/// and e are bf16 with n columns and up to n rows; further rows are zero. c and d are f32, n x n:
///     c = a b, with the transposes of a and b where asked for        d = (c rounded to bf16) e
/// `pairs` loads two fragments of b and e at a time.
struct MmaTest {
  Tensor c, d, a, b, e;
  bool a_transposed, b_transposed, pairs;
};
inline const Function<void(const MmaTest&)> mma_test("core/mma_test");

}  // namespace nemocube::cuda
