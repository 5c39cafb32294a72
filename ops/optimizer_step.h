#pragma once
#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/parallel_for.h"
#include "ops/finite.h"
#include "ops/update_gate.h"

/// The common part of optimizer steps, ops/adamw and ops/sgd, on the host: checks, and loops
/// of CPU kernels. A `Range` is one parameter, with members `master`, `model_copy` and
/// `number`. On devices: ops/optimizer_step.cuh.
namespace nemocube {

/// Throws Error unless `t` has this dtype and the shape of the master, and is contiguous.
inline void check_like_master(const char* what, const Tensor& t, const Tensor& master, DType dtype) {
  check_dtype(what, t, dtype);
  check_shape(what, t, master.shape());
  require(t.contiguous(), what, ": want a contiguous tensor");
}

/// Throws Error unless `master` is f32 or f64, and contiguous.
inline void check_master(const char* what, const Tensor& master) {
  require(master.defined() && (master.dtype() == DType::f32 || master.dtype() == DType::f64), what,
          ": want f32 or f64, got ", master.dtype());
  check_like_master(what, master, master, master.dtype());
}

/// The ranges that have elements, once check(range) and check_gate() have seen all of them.
template <class Range, class Check>
std::vector<Range> filled_ranges(std::span<const Range> ranges, const UpdateGate& gate, Check&& check) {
  std::vector<Range> filled;
  for (const Range& range : ranges) {
    check(range);
    check_gate(gate, range.number);
    if (range.master.numel() > 0) filled.push_back(range);
  }
  return filled;
}

namespace cpu {

/// Unless the gate is closed, calls step(TypeTag<T>(), range, numbers, grad_scale) for each
/// range and notes its result: whether all written numbers are finite. T is the type of the
/// master; `numbers` come from the schedule.
template <class Range, class Step>
void step_ranges(std::span<const Range> ranges, const Tensor& schedule, const UpdateGate& gate, Step&& step) {
  if (!goes(gate)) return;
  const auto* numbers = schedule.data<double>();
  const auto scale = gate.grad_scale.item<double>();
  for (const Range& range : ranges) {
    const bool finite = range.master.dtype() == DType::f64 ? step(TypeTag<double>(), range, numbers, scale)
                                                           : step(TypeTag<float>(), range, numbers, scale);
    note_finite(gate, finite, range.number);
  }
}

/// Calls update(first, count) for pieces of n elements, in parallel; returns whether all calls have returned
/// true. Each thread takes whole blocks, so that an element always takes the same path through the vector
/// loop.
template <class Update>
bool step_in_blocks(std::int64_t n, Update&& update) {
  constexpr std::int64_t block = 4096, blocks_per_thread = 8;
  std::atomic<bool> finite{true};
  parallel_for((n + block - 1) / block, blocks_per_thread, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * block;
    if (!update(first, std::min(end * block, n) - first)) finite = false;
  });
  return finite;
}

/// Writes the new value of weight i, and its copy in bf16 where there is one.
template <bool with_copy, class T>
void write_weight(T* w, bf16* copy, std::int64_t i, T value, FiniteCheck<T>& check) {
  w[i] = value;
  if constexpr (with_copy) {
    copy[i] = bf16(static_cast<float>(value));
    check.add(static_cast<T>(copy[i]));  // not finite wherever `value` is not
  } else {
    check.add(value);
  }
}

}  // namespace cpu
}  // namespace nemocube
