#pragma once
#include <cstdint>
#include <type_traits>

namespace nemocube::cuda {

/// For kernels that have their block size as a template argument, as CUB's block algorithms want it: calls
/// fn(std::integral_constant<int, threads>()) for the fewest of 32, 128, 256 and 512 threads that are at
/// least `wanted`, or for 512.
template <class Fn>
void visit_block_size(std::int64_t wanted, Fn&& fn) {
  if (wanted <= 32) return fn(std::integral_constant<int, 32>());
  if (wanted <= 128) return fn(std::integral_constant<int, 128>());
  if (wanted <= 256) return fn(std::integral_constant<int, 256>());
  fn(std::integral_constant<int, 512>());
}

}  // namespace nemocube::cuda
