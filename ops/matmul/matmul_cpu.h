#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "core/autograd.h"

/// The products of the CPU behind matmul(). Internal to this folder; sizes are at least 1 and checked.
namespace nemocube::cpu {

struct Operand {
  Tensor tensor;
  bool transposed = false;
};
struct Sizes {
  std::int64_t m = 0, n = 0, k = 0;
};

/// The product by oneDNN. Returns false, without doing anything, when this machine has no oneDNN product for
/// the dtypes. The first call in a process compares some products with plain loops where the version of
/// oneDNN is not among the tested ones; Error, here and in every later call, when one is wrong.
bool onednn_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes);
/// The same without this comparison.
bool onednn_product_unchecked(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes);

/// Whether all tests have passed with the releases major.minor of oneDNN.
bool is_tested_onednn(int major, int minor);
using OnednnProduct =
    std::function<bool(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes)>;
/// Compares products with plain loops: sizes of 1 and ragged ones up to 255, rows dense and apart, every
/// form. Each sum is exact in f32, so each element must be exact: a f32 product, and where `product` has bf16
/// operands, C in f32 and in bf16, rounded once. Error that names `version` and the first product that is
/// wrong. `product`: onednn_product_unchecked, or one of a test.
void check_onednn(const std::string& version, const OnednnProduct& product);
void f64_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes);

/// The fewest rows of C for each thread when every thread forms a slice of the rows by itself.
constexpr std::int64_t least_slice = 128;
/// onednn_product for a transposed A, where each of `threads` threads (at most M / 16) forms a slice of the
/// rows of C.
bool sliced_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes, int threads);

/// Whether oneDNN computes with AVX-512 or more here.
bool onednn_has_avx512();

/// Whether the product should run as crowded_product. A tensor is crowded when its rows are a multiple of 1
/// KiB apart: rows then share few cache sets and drive each other out of the cache. oneDNN avoids this by
/// copying operands, but without AVX-512 it does not copy for small f32 products. Such products run at half
/// speed or less when B or a transposed A is crowded (oneDNN 2.6, Zen 3, 100 to 2048 rows of C).
bool is_crowded(const Operand& a, const Operand& b, const Sizes& sizes);
/// An f32 product in which crowded operands are replaced by copies that are not crowded.
void crowded_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes);

/// A tensor of f32 whose rows are an odd number of cache lines apart, so that they use all cache sets.
Tensor rows_apart(std::int64_t rows, std::int64_t cols);
/// Whether oneDNN, with AVX-512 and on one thread, would read a transposed A of a product of `sizes` from
/// where A lies, again for every 48 columns of C, although its rows are a multiple of 4 KiB apart. oneDNN
/// works on 64 columns of 384 rows of A at a time. Of rows so far apart these do not stay in an L2 cache of 1
/// MiB, nor, from 8 KiB on, of 2 MiB.
bool rereads_crowded(const Tensor& a, const Operand& b, const Sizes& sizes);

/// A product of f32 copies of bf16 operands, for machines without a bf16 product in oneDNN.
void converted_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes);

/// The number of products that oneDNN has prepared and that are kept for reuse.
std::int64_t onednn_plans();
constexpr std::int64_t most_onednn_plans = 1024;
/// Bytes of one prepared product: the code that oneDNN has generated, and its data about the product.
/// `reserved`: address space instead, because oneDNN reserves more room for code than it writes. Without
/// AVX-512, products of all shapes share their code. With AMX a bf16 product has code for tiles besides.
/// Measured with oneDNN 2.6 and 3.7, AMX with 2.6 only; later releases are taken for 3.7.
std::int64_t onednn_plan_bytes(DType operands, bool reserved);

}  // namespace nemocube::cpu
