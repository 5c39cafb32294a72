#pragma once
#include "core/tensor.h"

namespace nemocube {

/// A factor of gradients: a number of the host, or one that kernels read on their device, so that the same
/// work can be queued again with another factor.
struct GradScale {
  GradScale(double value) : number(value) {}  // NOLINT(google-explicit-constructor): a number is a factor
  /// [1] f64, on the device of the gradients.
  GradScale(Tensor on_device)
      : tensor(std::move(on_device)) {  // NOLINT(google-explicit-constructor): likewise
    check_dtype("factor of gradients", tensor, DType::f64);
    check_shape("factor of gradients", tensor, {1});
  }

  double number = 1;
  Tensor tensor;  ///< undefined: 1. The factor is the product of both
  Tensor rows;    ///< [rows] f64: one more factor for each row of the gradients; undefined: 1
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(tensor);
    fn(rows);
  }
  /// Of a row, for kernels of the CPU.
  double value(std::int64_t row) const {
    const double common = tensor ? number * *tensor.data<double>() : number;
    return rows ? common * rows.data<double>()[row] : common;
  }
};

}  // namespace nemocube
