#include "ops/tile.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "core/rng.h"

using namespace nemocube;

namespace {

/// Rows of `cols` elements with `pad` more elements between rows. No product may use or write the latter.
template <class T>
struct Rows {
  std::int64_t stride;
  std::vector<T> data;

  Rows(std::int64_t rows, std::int64_t cols, std::int64_t pad, T fill)
      : stride(cols + pad), data(static_cast<std::size_t>(rows * stride), fill) {}
  T& at(std::int64_t r, std::int64_t c) { return data[static_cast<std::size_t>(r * stride + c)]; }
};

/// Integers of [-8, 8]: their products and sums are exact in f32, whatever the order.
template <class T>
Rows<T> integers(std::int64_t rows, std::int64_t cols, std::int64_t pad, std::uint64_t seed) {
  Rows<T> m(rows, cols, pad, T(1e6));
  const RandomStream stream(seed, "tile");
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      m.at(r, c) = static_cast<T>(stream.below(static_cast<std::uint64_t>(r * cols + c), 17)) - T(8);
  return m;
}

/// Whether tile_gemm gives the result of plain loops and does not write between the rows of C.
template <class T, bool ta>
bool agrees(std::int64_t M, std::int64_t N, std::int64_t K, bool accumulate, std::int64_t pad = 3) {
  Rows<T> a = ta ? integers<T>(K, M, pad, 1) : integers<T>(M, K, pad, 1);
  Rows<T> b = integers<T>(K, N, pad, 2), c = integers<T>(M, N, pad, 3), want = c;
  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t n = 0; n < N; ++n) {
      double sum = accumulate ? static_cast<double>(c.at(m, n)) : 0.0;
      for (std::int64_t k = 0; k < K; ++k)
        sum += static_cast<double>(ta ? a.at(k, m) : a.at(m, k)) * static_cast<double>(b.at(k, n));
      want.at(m, n) = static_cast<T>(sum);
    }
  tile_gemm<T, ta>(M, N, K, a.data.data(), a.stride, b.data.data(), b.stride, c.data.data(), c.stride,
                   accumulate);
  return c.data == want.data;
}

template <class T>
void check_all_forms(std::int64_t M, std::int64_t N, std::int64_t K, std::int64_t pad = 3) {
  CAPTURE(M);
  CAPTURE(N);
  CAPTURE(K);
  CAPTURE(pad);
  for (const bool accumulate : {false, true}) {
    CAPTURE(accumulate);
    CHECK(agrees<T, false>(M, N, K, accumulate, pad));
    CHECK(agrees<T, true>(M, N, K, accumulate, pad));
  }
}

constexpr std::int64_t rows = tile_detail::block_rows;
template <class T>
constexpr std::int64_t lanes = tile_detail::Lanes<T>::count;
template <class T>
constexpr std::int64_t panel_columns = tile_detail::panel_vectors* lanes<T>;

}  // namespace

TEST_CASE_TEMPLATE("tile_gemm: plain loops, for all forms and sizes around blocks and panels", T, float,
                   double) {
  constexpr std::int64_t panel = panel_columns<T>;
  for (const std::int64_t M : {std::int64_t{1}, std::int64_t{4}, std::int64_t{8}, std::int64_t{16}, rows - 1,
                               rows, 2 * rows + 5, 2 * rows + 8})
    for (const std::int64_t N :
         {std::int64_t{1}, lanes<T>, lanes<T> + 1, panel - 1, panel, panel + lanes<T>, 2 * panel + 3})
      for (const std::int64_t K : {0, 1, 17}) check_all_forms<T>(M, N, K);
  for (const std::int64_t K : {15, 16, 33}) check_all_forms<T>(3, panel + 1, K);
  for (const auto& [M, N] : {std::pair{0, 5}, {5, 0}}) check_all_forms<T>(M, N, 3);
}

TEST_CASE_TEMPLATE("tile_gemm: rows 4 KiB apart, few and many of A", T, float, double) {
  constexpr std::int64_t panel = panel_columns<T>, far = 4096 / sizeof(T);
  for (const std::int64_t M : {64, 65}) {
    CHECK(agrees<T, false>(M, 2 * panel, 9, false, far - 2 * panel));
    CHECK(agrees<T, true>(M, panel + 1, 9, true, far - panel - 1));
  }
}

TEST_CASE_TEMPLATE("tile_gemm: adds over k in ascending order", T, float, double) {
  constexpr std::int64_t panel = panel_columns<T>;
  const T big = std::is_same_v<T, float> ? T(0x1p24) : T(0x1p53);
  const std::vector<T> ones(3 * panel, 1);
  const auto sum_of = [&](const std::vector<T>& a) {
    std::vector<T> c(panel, -1);
    tile_gemm<T, false>(1, panel, 3, a.data(), 3, ones.data(), panel, c.data(), panel, false);
    return c.back();
  };
  CHECK(sum_of({1, big, -big}) == 0);
  CHECK(sum_of({big, 1, -big}) == 0);
  CHECK(sum_of({big, -big, 1}) == 1);
}
