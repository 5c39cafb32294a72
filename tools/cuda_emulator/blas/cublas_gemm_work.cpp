#include "blas/cublas_gemm.h"

namespace emulator::blas {
namespace {

/// Where a tile of results goes.
struct Target {
  double alpha, beta;
  View c;
};

void store_tile(const Target& target, const Tile& tile) {
  with_type(target.c.type, [&](auto* none) {
    using T = std::remove_pointer_t<decltype(none)>;
    auto* const c = static_cast<T*>(const_cast<void*>(target.c.data)) +
                    static_cast<std::ptrdiff_t>(tile.row) * target.c.row_stride +
                    static_cast<std::ptrdiff_t>(tile.column) * target.c.column_stride;
    for (std::size_t j = 0; j < tile.columns; ++j) {
      T* element = c + static_cast<std::ptrdiff_t>(j) * target.c.column_stride;
      const double* const sums = tile.sums + j * tile.pitch;
      for (std::size_t i = 0; i < tile.rows; ++i, element += target.c.row_stride) {
        double value = target.alpha * sums[i];
        if (target.beta != 0) value += target.beta * to_double(*element);
        *element = from_double<T>(value);
      }
    }
  });
}

/// Does the products; false after a report.
bool run(const Access& access, std::span<const Gemm> gemms, const Compute& compute) {
  std::vector<Product> products;
  std::vector<Target> targets;
  for (const Gemm& gemm : gemms) {
    if (gemm.m == 0 || gemm.n == 0) continue;
    const std::optional<double> alpha = gemm.alpha.value(access), beta = gemm.beta.value(access);
    if (!alpha || !beta) return false;
    Product product{{}, {}, gemm.m, gemm.n, 0};
    if (*alpha != 0 && gemm.k != 0) {
      const void *const a = host(access, gemm.a), *const b = host(access, gemm.b);
      if (!a || !b) return false;
      touch(access, gemm.a, false);
      touch(access, gemm.b, false);
      product.a = gemm.a.view(a, gemm.transpose_a);
      product.b = gemm.b.view(b, gemm.transpose_b);
      product.k = gemm.k;
    }
    const void* const c = host(access, gemm.c);
    if (!c) return false;
    if (*beta != 0) touch(access, gemm.c, false);
    products.push_back(product);
    targets.push_back({*alpha, *beta, gemm.c.view(c, false)});
  }
  for (const Gemm& gemm : gemms) touch(access, gemm.c, true);
  count_products(products, compute.rounding);
  multiply(products, compute.rounding, [&](const Tile& tile) { store_tile(targets[tile.product], tile); });
  return true;
}

/// A workspace of the program stands for itself by its first bytes: two streams that use one race there.
void touch_workspace(const Access& access, void* workspace) {
  if (workspace) access.touch(workspace, 256, true);
}

}  // namespace

cublasStatus_t enqueue_gemms(cublasHandle_t handle, const char* what, std::vector<Gemm> gemms,
                             const Compute& compute) {
  return enqueue(handle->stream, what,
                 [=, gemms = std::move(gemms), workspace = handle->workspace](unsigned operation) {
                   const Access access{operation, what};
                   touch_workspace(access, workspace);
                   return run(access, gemms, compute);
                 });
}

cublasStatus_t enqueue_gemms(cublasHandle_t handle, const char* what, std::vector<Gemm> gemms,
                             const Compute& compute, const void* const* a, const void* const* b,
                             const void* const* c) {
  return enqueue(handle->stream, what,
                 [=, gemms = std::move(gemms), workspace = handle->workspace](unsigned operation) {
                   const Access access{operation, what};
                   touch_workspace(access, workspace);
                   const std::size_t bytes = gemms.size() * sizeof(void*);
                   const auto* const pointers_a = static_cast<const void* const*>(access.read(a, bytes));
                   const auto* const pointers_b = static_cast<const void* const*>(access.read(b, bytes));
                   const auto* const pointers_c = static_cast<const void* const*>(access.read(c, bytes));
                   if (!pointers_a || !pointers_b || !pointers_c) return false;
                   std::vector<Gemm> filled = gemms;
                   for (std::size_t i = 0; i < filled.size(); ++i) {
                     filled[i].a.data = pointers_a[i];
                     filled[i].b.data = pointers_b[i];
                     filled[i].c.data = pointers_c[i];
                   }
                   return run(access, filled, compute);
                 });
}

}  // namespace emulator::blas
