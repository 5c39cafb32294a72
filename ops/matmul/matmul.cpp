#include "ops/matmul/matmul.h"

#include <omp.h>

#include <atomic>

#include "ops/matmul/matmul_kernels.h"

namespace nemocube {
namespace {

std::atomic<double>& flop_counter() {
  static std::atomic<double> flops{0};
  return flops;
}

struct Sizes {
  std::int64_t m = 0, n = 0, k = 0;
};

Sizes check_operands(const Tensor& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b) {
  const std::int64_t m = transpose_a ? a.cols() : a.rows(), k = transpose_a ? a.rows() : a.cols();
  const std::int64_t n = transpose_b ? b.rows() : b.cols(), inner = transpose_b ? b.cols() : b.rows();
  require(k == inner && c.rows() == m && c.cols() == n, "matmul: a ", a.shape(), transpose_a ? "^T" : "",
          " times b ", b.shape(), transpose_b ? "^T" : "", " does not make c ", c.shape());
  require(is_float(a.dtype()), "matmul: a: want f32, f64 or bf16, got ", a.dtype());
  check_dtype("matmul: b", b, a.dtype());
  require(c.dtype() == a.dtype() || (c.dtype() == DType::f32 && a.dtype() == DType::bf16),
          "matmul: c: dtype ", c.dtype(), " does not hold a product of ", a.dtype(), " operands");
  return {m, n, k};
}

}  // namespace

Zone& matmul_zone() {
  // Never destroyed: the registry of zones keeps a pointer to it after the thread has ended.
  thread_local Zone& zone = *new Zone("matmul");
  return zone;
}

double matmul_flops() { return flop_counter().load(); }
void reset_matmul_flops() { flop_counter().store(0); }
void count_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  flop_counter().fetch_add(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
}

void matmul_untimed(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b) {
  const Sizes sizes = check_operands(c.to, a, transpose_a, b, transpose_b);
  if (sizes.m == 0 || sizes.n == 0) return;
  if (sizes.k == 0) {
    if (c.how == Into::set) c.to.zero();
    return;
  }
  count_product(sizes.m, sizes.n, sizes.k);
  matmul_kernel(c, a, transpose_a, b, transpose_b);
}

void matmul(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b) {
  if (omp_in_parallel()) return matmul_untimed(c, a, transpose_a, b, transpose_b);
  const ZoneTimer timer(matmul_zone());
  matmul_untimed(c, a, transpose_a, b, transpose_b);
}

void matmul_mixed(const Output& c, const Tensor& a, const Tensor& b) {
  if (c.to.numel() == 0) return;
  const ZoneTimer timer(matmul_zone());
  count_product(a.rows(), b.rows(), a.cols());
  cuda::mixed_product(c, a, b);
}

Tensor matmul_split(const Output& c, const Tensor& a, const Tensor& b) {
  if (c.to.numel() == 0) return {};
  const ZoneTimer timer(matmul_zone());
  count_product(a.rows(), b.cols(), a.cols());
  return cuda::split_product(c, a, b);
}

void matmul_terms(const Output& c, const Tensor& terms, const Tensor& b) {
  if (c.to.numel() == 0) return;
  const ZoneTimer timer(matmul_zone());
  count_product(c.to.rows(), c.to.cols(), b.rows());
  cuda::terms_product(c, terms, b);
}

bool matmul_with_bias(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias) {
  if (!c.device().is_cuda() || c.numel() == 0 || a.numel() == 0) return false;
  const ZoneTimer timer(matmul_zone());
  if (!cuda::biased_product(c, a, b, bias)) return false;
  count_product(a.rows(), b.rows(), a.cols());
  return true;
}

}  // namespace nemocube
