#include "ops/matmul/matmul_cpu.h"
#include "ops/matmul/matmul_kernels.h"

namespace nemocube::cpu {
namespace {

void product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes) {
  if (a.tensor.dtype() == DType::f64)
    f64_product(c, a, b, sizes);
  else if (is_crowded(a, b, sizes))
    crowded_product(c, a, b, sizes);
  else if (!onednn_product(c, a, b, sizes))
    converted_product(c, a, b, sizes);
}

}  // namespace

void converted_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes) {
  const Operand wide_a{a.tensor.to(DType::f32), a.transposed}, wide_b{b.tensor.to(DType::f32), b.transposed};
  Output wide_c = c;
  if (c.to.dtype() != DType::f32)
    wide_c.to =
        c.how == Into::add ? c.to.to(DType::f32) : Tensor::empty(c.to.shape(), DType::f32, c.to.device());
  product(wide_c, wide_a, wide_b, sizes);
  if (c.to.dtype() != DType::f32) c.to.copy_from(wide_c.to);
}

void matmul(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b) {
  product(c, {a, transpose_a}, {b, transpose_b},
          {c.to.rows(), c.to.cols(), transpose_a ? a.rows() : a.cols()});
}

}  // namespace nemocube::cpu
