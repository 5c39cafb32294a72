#include "ops/matmul/matmul.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <thread>
#include <tuple>
#include <vector>

#include "core/add.h"
#include "core/cuda/streams.h"
#include "core/parallel_for.h"
#include "ops/matmul/matmul_cpu.h"
#include "ops/matmul/matmul_kernels.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

// op(a) op(b) + c in f64 by the definition.
Tensor reference(const Tensor& a, bool ta, const Tensor& b, bool tb, const Tensor& c) {
  const auto av = a.to_vector(), bv = b.to_vector();
  auto cv = c.to_vector();
  const std::int64_t m = c.rows(), n = c.cols(), k = ta ? a.rows() : a.cols();
  const auto at = [](const std::vector<double>& v, std::int64_t cols, std::int64_t r, std::int64_t col) {
    return v[static_cast<std::size_t>(r * cols + col)];
  };
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t l = 0; l < k; ++l)
        cv[static_cast<std::size_t>(i * n + j)] += (ta ? at(av, a.cols(), l, i) : at(av, a.cols(), i, l)) *
                                                   (tb ? at(bv, b.cols(), j, l) : at(bv, b.cols(), l, j));
  return Tensor::from(cv, c.shape());
}

// One rounding of the result; k roundings of partial sums of size up to about sqrt(k), of random sign. Tensor
// cores, which form sums of bf16 on CUDA, do not round but drop bits, always towards zero, once for 8 terms
// (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021): up to 2^-23 of the
// sum each time.
Tol product_tol(DType result, DType operands, std::int64_t k, Device device = Device::cpu) {
  const double store = result == DType::f64 ? 0x1p-53 : result == DType::bf16 ? 0x1p-8 : 0x1p-24;
  const double sums = operands == DType::f64 ? 0x1p-53 : 0x1p-24;
  const bool drops = operands == DType::bf16 && device.is_cuda();
  return {2 * store + (drops ? 0x1p-23 * static_cast<double>(k) / 8 : 0),
          4 * sums * static_cast<double>(k + 1)};
}

struct Types {
  DType operands, result;
};
constexpr Types all_types[] = {{DType::f32, DType::f32},
                               {DType::f64, DType::f64},
                               {DType::bf16, DType::bf16},
                               {DType::bf16, DType::f32}};

// A [rows, cols] view with guard columns left and right of it.
Tensor framed(std::int64_t rows, std::int64_t cols, DType dtype, std::uint64_t seed,
              Device device = Device::cpu) {
  return random_tensor({rows, cols + 7}, dtype, seed).to(device).narrow(-1, 3, cols);
}

/// The device that forms products, and the function.
struct ProductBy {
  Device device = Device::cpu;
  void (*product)(const Output&, const Tensor&, bool, const Tensor&, bool) = matmul;
};
void by_tiles(const Output& c, const Tensor& a, bool ta, const Tensor& b, bool tb) {
  cuda::tiled_product(c, a, ta, b, tb);
}

void check_product(const ProductBy& by, Types types, std::int64_t m, std::int64_t n, std::int64_t k, bool ta,
                   bool tb, Into how, bool strided) {
  CAPTURE(by.device);
  CAPTURE(types.operands);
  CAPTURE(types.result);
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(ta);
  CAPTURE(tb);
  CAPTURE(strided);
  CAPTURE(static_cast<int>(how));
  const auto make = [&](std::int64_t rows, std::int64_t cols, DType dtype, std::uint64_t seed) {
    return strided ? framed(rows, cols, dtype, seed, by.device)
                   : random_tensor({rows, cols}, dtype, seed).to(by.device);
  };
  const Tensor a = ta ? make(k, m, types.operands, 1) : make(m, k, types.operands, 1);
  const Tensor b = tb ? make(n, k, types.operands, 2) : make(k, n, types.operands, 2);
  const Tensor whole = random_tensor({m, n + 7}, types.result, 3).to(by.device);
  const Tensor c = strided ? whole.narrow(-1, 3, n) : random_tensor({m, n}, types.result, 3).to(by.device);
  const Tensor before = whole.clone();
  const Tensor start = how == Into::add ? c.clone() : Tensor::zeros({m, n}, types.result, Device::cpu);
  by.product({c, how}, a, ta, b, tb);
  Tol tol = product_tol(types.result, types.operands, k, by.device);
  // cuBLAS may round the product, too, before it is added. No product here is above 4 sqrt(k).
  if (how == Into::add && types.result == DType::bf16 && by.device.is_cuda() && by.product == &matmul)
    tol.abs += 0x1p-9 * 4 * std::sqrt(static_cast<double>(k));
  CHECK_CLOSE(c, reference(a, ta, b, tb, start), tol);
  CHECK_BITS(whole.narrow(-1, 0, 3), before.narrow(-1, 0, 3));
  CHECK_BITS(whole.narrow(-1, n + 3, 4), before.narrow(-1, n + 3, 4));
}

/// Calls fn(types, device) for each of the devices and all dtypes that it has.
template <class Fn>
void for_types(Fn&& fn) {
  for (const Device device : test_devices("matmul"))
    for (const Types types : all_types)
      if (types.operands != DType::f64 || !device.is_cuda()) fn(types, device);
}
/// Calls fn(transpose_a, transpose_b, how, strided) for all forms of a product.
template <class Fn>
void for_forms(Fn&& fn) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const Into how : {Into::set, Into::add})
        for (const bool strided : {false, true}) fn(ta, tb, how, strided);
}

}  // namespace

TEST_CASE("matmul: against the definition, all forms" * doctest::test_suite("cuda")) {
  for_types([](Types types, Device device) {
    for_forms([&](bool ta, bool tb, Into how, bool strided) {
      check_product({device}, types, 17, 33, 64, ta, tb, how, strided);
      check_product({device}, types, 3, 1, 5, ta, tb, how, strided);
      check_product({device}, types, 70, 65, 131, ta, tb, how, strided);
      check_product({device}, types, 64, 48, 96, ta, tb, how, strided);
    });
  });
}

TEST_CASE("matmul: edge sizes" * doctest::test_suite("cuda")) {
  for_types([](Types types, Device device) {
    for (const bool transposed : {false, true})
      for (const Into how : {Into::set, Into::add})
        for (const std::int64_t m : {0, 1, 2, 37})
          for (const std::int64_t n : {0, 1, 19})
            for (const std::int64_t k : {0, 1, 23})
              check_product({device}, types, m, n, k, transposed, !transposed, how, m % 2 == 1);
  });
}

TEST_CASE("matmul: the kernel for products that cuBLAS does not have, all forms" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const ProductBy by{Device::cuda, by_tiles};
  for (const Types types : all_types) {
    if (types.operands == DType::f64) continue;
    for_forms([&](bool ta, bool tb, Into how, bool strided) {
      check_product(by, types, 3, 1, 5, ta, tb, how, strided);
      // More than a tile in every direction; strided: no row is aligned.
      check_product(by, types, 132, 68, 20, ta, tb, how, strided);
    });
    check_product(by, types, 5, 7, 33, false, true, Into::set, false);
  }
}

TEST_CASE("matmul: products of bf16 terms on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const auto& [m, n, k] : {std::tuple{3, 1, 5}, {132, 68, 20}, {1, 200, 7}})
    for (const DType result : {DType::f32, DType::bf16})
      for (const Into how : {Into::set, Into::add})
        for (const bool strided : {false, true}) {
          CAPTURE(result);
          CAPTURE(m);
          CAPTURE(strided);
          const auto make = [&](std::int64_t rows, std::int64_t cols, DType dtype, std::uint64_t seed) {
            return strided ? framed(rows, cols, dtype, seed, Device::cuda)
                           : random_tensor({rows, cols}, dtype, seed).to(Device::cuda);
          };
          const auto check = [&](const Tensor& a, bool transpose, const Tensor& b, bool transpose_b,
                                 std::int64_t rows, std::int64_t length, auto&& form) {
            const Tensor c = make(rows, n, result, 3), start = c.clone(),
                         product = Tensor::empty({rows, n}, result, Device::cuda);
            const Tensor wanted =
                reference(a, transpose, b, transpose_b, Tensor::zeros({rows, n}, result, Device::cpu));
            form(Output{product, Into::set});
            CHECK_CLOSE(product, wanted, product_tol(result, DType::f32, length));
            form(Output{c, how});
            Tol tol = product_tol(result, DType::f32, length);
            if (how == Into::add && result == DType::bf16)
              tol.abs += 0x1p-9 * 4 * std::sqrt(static_cast<double>(length));  // as in check_product
            CHECK_CLOSE(
                c.clone(),
                how == Into::set ? wanted : reference(a, transpose, b, transpose_b, start.to(Device::cpu)),
                tol);
          };
          const Tensor a = make(m, k, DType::f32, 1), b = make(k, n, DType::f32, 2),
                       other = make(m, n, DType::bf16, 4);
          Tensor terms;
          check(a, false, b, false, m, k, [&](const Output& c) { terms = matmul_split(c, a, b); });
          check(a, true, other, false, k, m, [&](const Output& c) { matmul_terms(c, terms, other); });
          if (result == DType::bf16) continue;
          const Tensor x = make(m, k, DType::bf16, 5), w = make(n, k, DType::f32, 6);
          check(x, false, w, true, m, k, [&](const Output& c) { matmul_mixed(c, x, w); });
        }
}

TEST_CASE("matmul: f32 operands are rounded to TF32 on cuda when that is allowed, and only then" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  // TF32 has no 2^-12 beside 1.
  Tensor a = Tensor::empty({64, 64}, DType::f32, Device::cpu), b = a.clone();
  a.fill(1 + 0x1p-12);
  b.fill(1);
  a = a.to(Device::cuda);
  b = b.to(Device::cuda);
  for (const bool allowed : {false, true, false}) {
    CAPTURE(allowed);
    const Tensor c = Tensor::empty({64, 64}, DType::f32, Device::cuda);
    cuda::allow_tf32(allowed);
    matmul({c, Into::set}, a, false, b, false);
    cuda::allow_tf32(false);
    CHECK(c.to_vector() == std::vector<double>(64 * 64, allowed ? 64 : 64 + 0x1p-6));
  }
}

TEST_CASE("matmul: every alignment of the operands on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const auto window = [](std::int64_t rows, std::int64_t cols, std::int64_t start, std::int64_t stride,
                         DType dtype, std::uint64_t seed) {
    return random_tensor({rows, stride}, dtype, seed).to(Device::cuda).narrow(-1, start, cols);
  };
  for (const auto product : {matmul, by_tiles})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::int64_t start : {0, 1, 2, 4, 8})
        for (const std::int64_t stride : {40, 41, 42, 44}) {
          CAPTURE(dtype);
          CAPTURE(start);
          CAPTURE(stride);
          const Tensor a = window(5, 19, start, stride, dtype, 1),
                       b = window(19, 24, start, stride, dtype, 2);
          const Tensor c = window(5, 24, start, stride, dtype, 3), start_c = c.clone();
          product({c, Into::add}, a, false, b, false);
          CHECK_CLOSE(c, reference(a, false, b, false, start_c), product_tol(dtype, dtype, 19));
        }
}

TEST_CASE("matmul: bf16 is added to and rounded once" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("matmul"))
    for (const auto product : {matmul, by_tiles}) {
      if (product == by_tiles && !device.is_cuda()) continue;
      // 256 + 1 + 1: a sum that is rounded to bf16 twice stays at 256.
      const Tensor ones = Tensor::from(std::vector<float>{1, 1}, {1, 2}).to(DType::bf16).to(device);
      const Tensor c = Tensor::from(std::vector<float>{256}, {1, 1}).to(DType::bf16).to(device);
      product({c, Into::add}, ones, false, ones, true);
      CHECK(c.to_vector().front() == 258);
    }
}

TEST_CASE("matmul: what was there is not read unless it is added to; NaN and infinity pass" *
          doctest::test_suite("cuda")) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Device device : test_devices("matmul"))
    for (const auto product : {matmul, by_tiles}) {
      if (product == by_tiles && !device.is_cuda()) continue;
      const Tensor a = Tensor::from(std::vector<float>{1, 2, nan, 0, inf, 0}, {3, 2}).to(device);
      const Tensor b = Tensor::from(std::vector<float>{3, 4}, {2, 1}).to(device);
      const Tensor c = Tensor::from(std::vector<float>{nan, 1, 1}, {3, 1}).to(device);
      product({c, Into::set}, a, false, b, false);
      const auto got = c.to_vector();
      CHECK(got[0] == 11);
      CHECK(std::isnan(got[1]));
      CHECK(got[2] == static_cast<double>(inf));
    }
}

TEST_CASE("matmul: rows more than 2^31 elements apart on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  // Rows are copied one by one, because the software GPU looks at all memory of a copy of several.
  const auto far = [](const Tensor& t) {
    const Tensor to = Tensor::empty({t.rows(), (std::int64_t{1} << 31) + 16}, t.dtype(), Device::cuda)
                          .narrow(-1, 0, t.cols());
    for (std::int64_t r = 0; r < t.rows(); ++r) to.narrow(0, r, 1).copy_from(t.narrow(0, r, 1));
    return to;
  };
  const DType dtype = DType::bf16;
  const Tensor a = random_tensor({2, 5}, dtype, 1), b = random_tensor({5, 3}, dtype, 2),
               other = random_tensor({2, 3}, dtype, 3);
  const Tensor zeros = Tensor::zeros({5, 3}, dtype, Device::cpu), c = far(zeros.narrow(0, 0, 2));
  by_tiles({c, Into::set}, far(a), false, b.to(Device::cuda), false);
  const Tensor want = reference(a, false, b, false, zeros.narrow(0, 0, 2));
  for (const std::int64_t row : {0, 1})
    CHECK_CLOSE(c.narrow(0, row, 1), want.narrow(0, row, 1), product_tol(dtype, dtype, 5));
  const Tensor d = Tensor::empty({5, 3}, dtype, Device::cuda);
  by_tiles({d, Into::set}, far(a), true, far(other), false);
  CHECK_CLOSE(d, reference(a, true, other, false, zeros), product_tol(dtype, dtype, 2));
}

TEST_CASE("matmul: leading dimensions are rows" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("matmul")) {
    const Tensor a = random_tensor({2, 3, 5}, DType::f32, 1).to(device),
                 b = random_tensor({5, 4}, DType::f32, 2).to(device);
    const Tensor c = Tensor::empty({2, 3, 4}, DType::f32, device),
                 flat = Tensor::empty({6, 4}, DType::f32, device);
    matmul({c, Into::set}, a, false, b, false);
    matmul({flat, Into::set}, a.reshape({6, 5}), false, b, false);
    CHECK_BITS(c.reshape({6, 4}), flat);
  }
}

TEST_CASE("matmul: long sums of bf16 keep f32 accuracy" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("matmul")) {
    check_product({device}, {DType::bf16, DType::f32}, 5, 6, 4099, true, false, Into::add, false);
    check_product({device}, {DType::f32, DType::f32}, 5, 6, 4099, true, false, Into::set, false);
  }
}

TEST_CASE("matmul: from several threads and on several streams of cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor a = random_tensor({61, 47}, DType::f32, 1).to(Device::cuda),
               b = random_tensor({47, 53}, DType::f32, 2).to(Device::cuda);
  const auto product = [&] {
    const Tensor c = Tensor::empty({61, 53}, DType::f32, Device::cuda);
    matmul({c, Into::set}, a, false, b, false);
    return c;
  };
  const Tensor alone = product();
  CHECK_BITS(product(), alone);
  std::vector<Tensor> beside(4);
  {
    std::vector<std::jthread> workers;
    for (Tensor& c : beside) workers.emplace_back([&c, &product] { c = product(); });
  }
  for (const Tensor& c : beside) CHECK_BITS(c, alone);
  for (const cuda::Stream stream : {cuda::Stream::copies, cuda::Stream::communication}) {
    cuda::wait_for_event(stream, cuda::record_event(cuda::Stream::compute));
    Tensor c;
    {
      const cuda::OnStream on(stream);
      c = product();
    }
    cuda::wait_for_event(cuda::Stream::compute, cuda::record_event(stream));
    CHECK_BITS(c, alone);
  }
}

TEST_CASE("matmul: bf16 by way of f32, for machines without bf16 products") {
  for (const DType result : {DType::bf16, DType::f32})
    for (const Into how : {Into::set, Into::add}) {
      const Tensor a = framed(13, 31, DType::bf16, 1), b = random_tensor({17, 31}, DType::bf16, 2);
      const Tensor c = framed(13, 17, result, 3);
      const Tensor start = how == Into::add ? c.clone() : Tensor::zeros({13, 17}, result, Device::cpu);
      cpu::converted_product({c, how}, {a, false}, {b, true}, {13, 17, 31});
      CHECK_CLOSE(c, reference(a, false, b, true, start), product_tol(result, DType::bf16, 31));
    }
}

TEST_CASE("matmul: products of crowded operands by way of copies, on any machine") {
  const auto stored = [](std::int64_t rows, std::int64_t cols, bool crowded, std::uint64_t seed) {
    return random_tensor({rows, crowded ? 768 : 775}, DType::f32, seed).narrow(-1, 3, cols);
  };
  const int before = omp_get_max_threads();
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    for (const std::int64_t m : {1, 33, 391})
      for (const auto& [crowded_a, crowded_b] : {std::pair{true, true}, {true, false}, {false, true}})
        for (const std::int64_t k : {1, 255, 600})
          for (const bool ta : {false, true})
            for (const bool tb : {false, true}) {
              constexpr std::int64_t n = 17;
              CAPTURE(threads);
              CAPTURE(m);
              CAPTURE(crowded_a);
              CAPTURE(crowded_b);
              CAPTURE(k);
              CAPTURE(ta);
              CAPTURE(tb);
              const Tensor a = stored(ta ? k : m, ta ? m : k, crowded_a, 1);
              const Tensor b = stored(tb ? n : k, tb ? k : n, crowded_b, 2);
              for (const Into how : {Into::set, Into::add}) {
                const Tensor wide = random_tensor({m, n + 7}, DType::f32, 3), frame = wide.clone();
                const Tensor c = wide.narrow(-1, 3, n);
                const Tensor start =
                    how == Into::add ? c.clone() : Tensor::zeros({m, n}, DType::f32, Device::cpu);
                cpu::crowded_product({c, how}, {a, ta}, {b, tb}, {m, n, k});
                CHECK_CLOSE(c, reference(a, ta, b, tb, start), product_tol(DType::f32, DType::f32, k));
                CHECK_BITS(wide.narrow(-1, 0, 3), frame.narrow(-1, 0, 3));
                CHECK_BITS(wide.narrow(-1, n + 3, 4), frame.narrow(-1, n + 3, 4));
              }
            }
  }
  omp_set_num_threads(before);
}

// oneDNN 3.7 takes a column whose values lie apart for one whose values lie side by side.
TEST_CASE("matmul: sizes of 1 of every kind" * doctest::test_suite("cuda")) {
  for_types([](Types types, Device device) {
    for (const std::int64_t m : {1, 2, 37})
      for (const std::int64_t n : {1, 19})
        for (const std::int64_t k : {1, 5, 64}) {
          if (m > 1 && n > 1 && k > 1) continue;
          for_forms([&](bool ta, bool tb, Into how, bool strided) {
            check_product({device}, types, m, n, k, ta, tb, how, strided);
          });
        }
  });
}

TEST_CASE("matmul: a release of oneDNN that nobody has tried is compared with plain loops") {
  CHECK(cpu::is_tested_onednn(2, 6));
  CHECK(cpu::is_tested_onednn(3, 7));
  CHECK_FALSE(cpu::is_tested_onednn(3, 8));
  CHECK_NOTHROW(cpu::check_onednn("9.8.7", cpu::onednn_product_unchecked));
  int products = 0;
  // As oneDNN 3.7 is wrong: of a transposed A of one column, it reads what lies beside its values.
  const cpu::OnednnProduct wrong = [&](const Output& c, const cpu::Operand& a, const cpu::Operand& b,
                                       const cpu::Sizes& sizes) {
    ++products;
    if (!a.transposed || sizes.m > 1 || a.tensor.row_stride() == 1)
      return cpu::onednn_product_unchecked(c, a, b, sizes);
    const Tensor beside = Tensor::borrow(a.tensor.host_bytes(), {sizes.k, 1}, a.tensor.dtype(), nullptr);
    return cpu::onednn_product_unchecked(c, {beside, true}, b, sizes);
  };
  CHECK(message_of([&] { cpu::check_onednn("9.8.7", wrong); }) ==
        "matmul: oneDNN 9.8.7 of this machine computes wrong products: 1 of 7 elements of C = A^T B in f32, "
        "C in f32, with m=1 n=1 k=23, rows apart; want a release that this program has been tested with: 2.6 "
        "or 3.7");
  CHECK(products > 1);
}

TEST_CASE("matmul: which products are crowded") {
  const auto crowded = [](std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb, DType dtype) {
    const auto t = [&](std::int64_t rows, std::int64_t cols) { return Tensor::meta({rows, cols}, dtype); };
    return cpu::is_crowded({ta ? t(k, m) : t(m, k), ta}, {tb ? t(n, k) : t(k, n), tb}, {m, n, k});
  };
  const bool plain = !cpu::onednn_has_avx512();
  CHECK(crowded(512, 512, 300, true, false, DType::f32) == plain);
  CHECK(crowded(100, 512, 300, false, false, DType::f32) == plain);
  CHECK(crowded(256, 500, 300, true, true, DType::f32) == plain);
  for (const bool big : {false, true})
    CHECK_FALSE(crowded(big ? 2048 : 8, 512, 300, false, false, DType::f32));
  CHECK_FALSE(crowded(512, 1024, 300, true, false, DType::f32));
  CHECK_FALSE(crowded(100, 512, 512, false, true, DType::f32));
  CHECK_FALSE(crowded(100, 500, 512, false, false, DType::f32));
  CHECK_FALSE(crowded(100, 512, 300, false, false, DType::bf16));
}

TEST_CASE("matmul: same bits again, in a parallel region and from several threads") {
  const Tensor a = random_tensor({61, 47}, DType::f32, 1), b = random_tensor({47, 53}, DType::f32, 2);
  const auto product = [&] {
    Tensor c = Tensor::empty({61, 53}, DType::f32, Device::cpu);
    matmul({c, Into::set}, a, false, b, false);
    return c;
  };
  CHECK_BITS(product(), product());
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Tensor alone = product();
  omp_set_num_threads(threads);
  std::vector<Tensor> inside(8), beside(4);
  parallel_for(8, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) inside[static_cast<std::size_t>(i)] = product();
  });
  if (threads > 1)  // with one thread there is no parallel region
    for (const Tensor& c : inside) CHECK_BITS(c, alone);
  const Tensor together = product();
  {
    std::vector<std::jthread> workers;
    for (Tensor& c : beside)
      workers.emplace_back([&c, &product, threads] {
        omp_set_num_threads(threads);
        c = product();
      });
  }
  for (const Tensor& c : beside) CHECK_BITS(c, together);
}

TEST_CASE("matmul: slices of rows, on any machine") {
  for (const int threads : {1, 2, 3, 5})
    for (const std::int64_t m : {80, 255, 391})
      for (const Into how : {Into::set, Into::add}) {
        CAPTURE(threads);
        CAPTURE(m);
        const Tensor a = framed(21, m, DType::f32, 1), b = random_tensor({21, 33}, DType::f32, 2);
        const Tensor wide = random_tensor({m, 40}, DType::f32, 3), frame = wide.clone();
        const Tensor c = wide.narrow(-1, 3, 33);
        const Tensor start = how == Into::add ? c.clone() : Tensor::zeros({m, 33}, DType::f32, Device::cpu);
        CHECK(cpu::sliced_product({c, how}, {a, true}, {b, false}, {m, 33, 21}, threads));
        CHECK_CLOSE(c, reference(a, true, b, false, start), product_tol(DType::f32, DType::f32, 21));
        CHECK_BITS(wide.narrow(-1, 0, 3), frame.narrow(-1, 0, 3));
        CHECK_BITS(wide.narrow(-1, 36, 4), frame.narrow(-1, 36, 4));
      }
}

TEST_CASE("matmul: copies of a crowded A change no bit") {
  if (!cpu::onednn_has_avx512()) {
    MESSAGE("did not run: oneDNN has no AVX-512 here");
    return;
  }
  const auto at_step = [](const Tensor& t, std::int64_t step) {
    const Tensor to = Tensor::zeros({t.rows(), step}, t.dtype(), t.device()).narrow(-1, 0, t.cols());
    to.copy_from(t);
    return to;
  };
  for (const std::int64_t m : {641, 700, 1024})
    for (const std::int64_t n : {256, 512})
      for (const std::int64_t k : {100, 900, 2048})
        for (const Into how : {Into::set, Into::add}) {
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          const Tensor values = random_tensor({k, m}, DType::f32, 1),
                       b = random_tensor({k, n}, DType::f32, 2);
          const Tensor crowded = at_step(values, 1024), spread = at_step(values, 1040);
          REQUIRE(cpu::rereads_crowded(crowded, {b, false}, {m / 2, n, k}));
          REQUIRE_FALSE(cpu::rereads_crowded(spread, {b, false}, {m / 2, n, k}));
          const Tensor start = random_tensor({m, n}, DType::f32, 3), c = start.clone(), want = start.clone();
          for (const int threads : {1, 2, 3}) {
            CHECK(cpu::sliced_product({c, how}, {crowded, true}, {b, false}, {m, n, k}, threads));
            CHECK(cpu::sliced_product({want, how}, {spread, true}, {b, false}, {m, n, k}, threads));
            CHECK_BITS(c, want);
          }
        }
}

TEST_CASE("matmul: which A oneDNN would read again and again with AVX-512") {
  const auto rereads = [](std::int64_t m, std::int64_t n, std::int64_t step_a, std::int64_t step_b,
                          DType dtype = DType::f32) {
    const Tensor a = Tensor::meta({64, step_a}, dtype), b = Tensor::meta({64, step_b}, dtype);
    return cpu::rereads_crowded(a.narrow(-1, 0, m), {b.narrow(-1, 0, n), false}, {m, n, 64});
  };
  CHECK(rereads(4096, 512, 8192, 512));
  CHECK(rereads(1024, 512, 2048, 512));
  CHECK(rereads(512, 512, 1024, 512));
  CHECK_FALSE(rereads(256, 512, 512, 512));      // 2 KiB apart
  CHECK_FALSE(rereads(1352, 512, 2704, 512));    // not a multiple
  CHECK_FALSE(rereads(4096, 640, 8192, 640));    // oneDNN copies: large
  CHECK_FALSE(rereads(1024, 1024, 2048, 1024));  // oneDNN copies: b's rows
  CHECK_FALSE(rereads(1024, 192, 2048, 192));    // few columns
  CHECK_FALSE(rereads(1024, 512, 2048, 512, DType::bf16));
}

TEST_CASE("matmul: weight gradients, which threads form in slices of rows") {
  const int before = omp_get_max_threads();
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    for (const Types types : all_types)
      for (const Into how : {Into::set, Into::add})
        for (const std::int64_t rows : {255, 256, 257, 391, 530})
          for (const std::int64_t n : {1, 33})
            check_product({}, types, rows, n, 21, true, false, how, rows % 2 == 0);
  }
  omp_set_num_threads(before);
}

TEST_CASE("matmul: prepared products are kept, but not without bound") {
  const Tensor a = random_tensor({1100, 3}, DType::f32, 1), b = random_tensor({3, 2}, DType::f32, 2);
  const Tensor c = Tensor::empty({1100, 2}, DType::f32, Device::cpu);
  matmul({c, Into::set}, a, false, b, false);
  const std::int64_t before = cpu::onednn_plans();
  matmul({c, Into::set}, a, false, b, false);
  CHECK(cpu::onednn_plans() == before);
  for (std::int64_t rows = 1; rows <= 1100; ++rows)
    matmul({c.narrow(0, 0, rows), Into::set}, a.narrow(0, 0, rows), false, b, false);
  CHECK(cpu::onednn_plans() <= cpu::most_onednn_plans);
  CHECK_CLOSE(c, reference(a, false, b, false, Tensor::zeros({1100, 2}, DType::f32, Device::cpu)),
              product_tol(DType::f32, DType::f32, 3));
}

TEST_CASE("matmul: f64 on cuda is an error" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor a = Tensor::zeros({2, 2}, DType::f64, Device::cuda);
  CHECK_THROWS_WITH_AS(matmul({a, Into::set}, a, false, a, false),
                       "matmul on cuda: want f32 or bf16, got f64", Error);
}

TEST_CASE("matmul: counts operations and time") {
  const Tensor a = random_tensor({5, 7}, DType::f32, 1), b = random_tensor({7, 3}, DType::f32, 2);
  const Tensor c = Tensor::empty({5, 3}, DType::f32, Device::cpu);
  reset_matmul_flops();
  const std::int64_t calls = matmul_zone().calls();
  matmul({c, Into::set}, a, false, b, false);
  CHECK(matmul_flops() == 2 * 5 * 7 * 3);
  CHECK(matmul_zone().calls() == calls + 1);
  matmul_untimed({c, Into::add}, a, false, b, false);
  CHECK(matmul_flops() == 4 * 5 * 7 * 3);
  CHECK(matmul_zone().calls() == calls + 1);
}

TEST_CASE("matmul: errors") {
  const auto t = [](std::int64_t rows, std::int64_t cols, DType dtype = DType::f32) {
    return Tensor::zeros({rows, cols}, dtype, Device::cpu);
  };
  const Tensor a = t(2, 3), b = t(3, 4), c = t(2, 4);
  CHECK_THROWS_AS(matmul({c, Into::set}, a, true, b, false), Error);
  CHECK_THROWS_AS(matmul({c, Into::set}, a, false, b, true), Error);
  CHECK_THROWS_AS(matmul({t(2, 3), Into::set}, a, false, b, false), Error);
  CHECK_THROWS_AS(matmul({t(4, 4), Into::set}, a, false, b, false), Error);
  CHECK_THROWS_AS(matmul({c, Into::set}, a, false, t(3, 4, DType::bf16), false), Error);
  CHECK_THROWS_AS(matmul({t(2, 4, DType::bf16), Into::set}, a, false, b, false), Error);
  CHECK_THROWS_AS(matmul({t(2, 4, DType::f64), Into::set}, a, false, b, false), Error);
  CHECK_THROWS_AS(
      matmul({t(2, 4, DType::i64), Into::set}, t(2, 3, DType::i64), false, t(3, 4, DType::i64), false),
      Error);
}
