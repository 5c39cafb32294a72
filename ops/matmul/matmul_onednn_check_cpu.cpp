#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "ops/matmul/matmul_cpu.h"

namespace nemocube::cpu {
namespace {

/// The releases that come with Debian 12 and 13.
constexpr std::array tested_releases{std::pair{2, 6}, std::pair{3, 7}};

// Each has a dimension of size 1, or is ragged.
constexpr std::array<Sizes, 9> checked_sizes{{{1, 1, 23},
                                              {1, 19, 23},
                                              {37, 1, 16},
                                              {3, 1, 5},
                                              {5, 7, 1},
                                              {1, 1, 1},
                                              {33, 17, 3},
                                              {16, 64, 48},
                                              {64, 1, 255}}};

struct Form {
  DType operands = DType::f32, result = DType::f32;
  bool transpose_a = false, transpose_b = false;
  Into how = Into::set;
  std::int64_t frame = 0;  ///< columns on either side of each matrix
};

// Quarters of small whole numbers: the sums here are exact in f32, in every order.
double value_a(std::int64_t m, std::int64_t k) { return static_cast<double>((m * 7 + k * 3) % 11 - 5) / 4; }
double value_b(std::int64_t k, std::int64_t n) { return static_cast<double>((k * 5 + n * 2) % 9 - 4) / 4; }
double value_c(std::int64_t m, std::int64_t n) { return static_cast<double>((m + n * 4) % 7); }

/// The f32 matrix of value(row, column), or of value(column, row) when it is transposed, in a frame of NaNs.
template <class Value>
Tensor framed(std::int64_t rows, std::int64_t cols, std::int64_t frame, bool transposed, const Value& value) {
  if (transposed) std::swap(rows, cols);
  const Tensor wide = Tensor::empty({rows, cols + 2 * frame}, DType::f32, Device::cpu);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::fill_n(wide.row<float>(r), wide.cols(), std::nanf(""));
    for (std::int64_t c = 0; c < cols; ++c)
      wide.row<float>(r)[frame + c] = static_cast<float>(transposed ? value(c, r) : value(r, c));
  }
  return wide;
}

/// The number of elements of two f32 matrices that differ, where NaNs are alike.
std::int64_t differing(const Tensor& a, const Tensor& b) {
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < a.rows(); ++r)
    for (std::int64_t c = 0; c < a.cols(); ++c) {
      const float x = a.row<float>(r)[c], y = b.row<float>(r)[c];
      count += !(x == y || (std::isnan(x) && std::isnan(y)));
    }
  return count;
}

void check_form(const std::string& version, const OnednnProduct& product, const Sizes& sizes,
                const Form& form) {
  const auto inside = [&](const Tensor& wide) {
    return wide.narrow(-1, form.frame, wide.cols() - 2 * form.frame);
  };
  const Tensor a = framed(sizes.m, sizes.k, form.frame, form.transpose_a, value_a).to(form.operands);
  const Tensor b = framed(sizes.k, sizes.n, form.frame, form.transpose_b, value_b).to(form.operands);
  const Tensor c = framed(sizes.m, sizes.n, form.frame, false, value_c).to(form.result);
  const auto sum = [&](std::int64_t m, std::int64_t n) {
    double total = form.how == Into::add ? value_c(m, n) : 0;
    for (std::int64_t k = 0; k < sizes.k; ++k) total += value_a(m, k) * value_b(k, n);
    return total;
  };
  const Tensor want = framed(sizes.m, sizes.n, form.frame, false, sum).to(form.result);
  if (!product({inside(c), form.how}, {inside(a), form.transpose_a}, {inside(b), form.transpose_b}, sizes))
    return;
  const std::int64_t wrong = differing(c.to(DType::f32), want.to(DType::f32));
  if (wrong == 0) return;
  std::string releases;
  for (const auto& [major, minor] : tested_releases)
    releases += cat(releases.empty() ? "" : " or ", major, '.', minor);
  fail("matmul: oneDNN ", version, " of this machine computes wrong products: ", wrong, " of ", c.numel(),
       " elements of C = ", form.transpose_a ? "A^T" : "A", form.transpose_b ? " B^T" : " B",
       form.how == Into::add ? " + C" : "", " in ", form.operands, ", C in ", form.result,
       ", with m=", sizes.m, " n=", sizes.n, " k=", sizes.k, ", rows ", form.frame == 0 ? "dense" : "apart",
       "; want a release that this program has been tested with: ", releases);
}

}  // namespace

bool is_tested_onednn(int major, int minor) {
  return std::ranges::find(tested_releases, std::pair{major, minor}) != tested_releases.end();
}

void check_onednn(const std::string& version, const OnednnProduct& product) {
  log_debug("oneDNN ", version, " is not among the tested releases: comparing products with plain loops");
  for (const Sizes& sizes : checked_sizes)
    for (const auto& [operands, result] :
         {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}})
      for (const bool transpose_a : {false, true})
        for (const bool transpose_b : {false, true})
          for (const Into how : {Into::set, Into::add})
            for (const std::int64_t frame : {0, 3})
              check_form(version, product, sizes, {operands, result, transpose_a, transpose_b, how, frame});
}

}  // namespace nemocube::cpu
