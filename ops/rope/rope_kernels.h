#pragma once
#include <cstdint>

#include "core/kernel.h"

/// Kernels behind ops/rope/rope.h: arguments checked by the caller.
namespace nemocube {

struct RopeOperands {
  Tensor q_out{}, q{};  ///< [T, heads * head_dim], perhaps the same tensor; undefined: k alone is rotated
  Tensor k_out{}, k{};  ///< [T, kv_heads * head_dim], likewise
  Tensor table{};       ///< [T, n], contiguous
  std::int64_t head_dim = 0;
  bool back = false;  ///< by the negative angles
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&q_out, &q, &k_out, &k, &table}) fn(*t);
  }
};

namespace cpu {
/// table [T, n] f32 or f64. Of a row at position p: A cos(p f_i) for each i, then A sin(p f_i) for each i.
/// positions [T] i64; inverse [n / 2] f64, f; attention_factor A.
void rope_table(const Tensor& table, const Tensor& positions, const Tensor& inverse, double attention_factor);
void rope_rotate(const RopeOperands& operands);
}  // namespace cpu

inline const Kernel<cpu::rope_table> rope_table("rope/table");
inline const Kernel<cpu::rope_rotate> rope_rotate("rope/rotate");

}  // namespace nemocube
