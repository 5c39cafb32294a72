#pragma once
#include "core/tensor.h"

namespace nemocube {

/// Maximum and sum, element by element, over the ranks that together hold something that is cut: a
/// vocabulary, a group of channels. Every rank makes the same calls in the same order and gets the same bits.
///
/// rows       contiguous, f32 or f64, of the same shape on every rank; the result replaces the operand
class RankReduction {
 public:
  virtual ~RankReduction() = default;
  virtual void max(const Tensor& rows) = 0;
  virtual void sum(const Tensor& rows) = 0;
};

}  // namespace nemocube
