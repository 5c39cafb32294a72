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
  DType operands = DType::f32;
  bool transpose_a = false, transpose_b = false;
  Into how = Into::set;
  std::int64_t frame = 0;  ///< columns on either side of each matrix
};

// Quarters of small whole numbers: the sums here are exact in f32, in every order.
double value_a(std::int64_t m, std::int64_t k) { return static_cast<double>((m * 7 + k * 3) % 11 - 5) / 4; }
double value_b(std::int64_t k, std::int64_t n) { return static_cast<double>((k * 5 + n * 2) % 9 - 4) / 4; }
double value_c(std::int64_t m, std::int64_t n) { return static_cast<double>((m + n * 4) % 7); }

/// The matrix of value(row, column), or of value(column, row) when it is transposed, in a frame of NaNs.
Tensor framed(std::int64_t rows, std::int64_t cols, std::int64_t frame, bool transposed,
              double (*value)(std::int64_t, std::int64_t)) {
  if (transposed) std::swap(rows, cols);
  const Tensor wide = Tensor::empty({rows, cols + 2 * frame}, DType::f32, Device::cpu);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::fill_n(wide.row<float>(r), wide.cols(), std::nanf(""));
    for (std::int64_t c = 0; c < cols; ++c)
      wide.row<float>(r)[frame + c] = static_cast<float>(transposed ? value(c, r) : value(r, c));
  }
  return wide;
}

/// The number of elements that are not as they should be, the frame included.
std::int64_t count_wrong(const Tensor& wide_c, const Sizes& sizes, const Form& form) {
  std::int64_t wrong = 0;
  for (std::int64_t m = 0; m < sizes.m; ++m)
    for (std::int64_t n = -form.frame; n < sizes.n + form.frame; ++n) {
      const float found = wide_c.row<float>(m)[form.frame + n];
      if (n < 0 || n >= sizes.n) {
        wrong += !std::isnan(found);
        continue;
      }
      double sum = form.how == Into::add ? value_c(m, n) : 0;
      for (std::int64_t k = 0; k < sizes.k; ++k) sum += value_a(m, k) * value_b(k, n);
      wrong += static_cast<double>(found) != sum;
    }
  return wrong;
}

void check_form(const std::string& version, const OnednnProduct& product, const Sizes& sizes,
                const Form& form) {
  const auto inside = [&](const Tensor& wide) {
    return wide.narrow(-1, form.frame, wide.cols() - 2 * form.frame);
  };
  const Tensor a = framed(sizes.m, sizes.k, form.frame, form.transpose_a, value_a).to(form.operands);
  const Tensor b = framed(sizes.k, sizes.n, form.frame, form.transpose_b, value_b).to(form.operands);
  const Tensor c = framed(sizes.m, sizes.n, form.frame, false, value_c);
  if (!product({inside(c), form.how}, {inside(a), form.transpose_a}, {inside(b), form.transpose_b}, sizes))
    return;
  const std::int64_t wrong = count_wrong(c, sizes, form);
  require(wrong == 0, "matmul: oneDNN ", version, " of this machine computes wrong products: ", wrong, " of ",
          c.numel(), " elements of C = ", form.transpose_a ? "A^T" : "A", form.transpose_b ? " B^T" : " B",
          form.how == Into::add ? " + C" : "", " in ", form.operands, " with m=", sizes.m, " n=", sizes.n,
          " k=", sizes.k, ", rows ", form.frame == 0 ? "dense" : "apart",
          "; want a release that this program has been tested with: 2.6 or 3.7");
}

}  // namespace

bool is_tested_onednn(int major, int minor) {
  return std::ranges::find(tested_releases, std::pair{major, minor}) != tested_releases.end();
}

void check_onednn(const std::string& version, const OnednnProduct& product) {
  log_debug("oneDNN ", version, " is not among the tested releases: comparing products with plain loops");
  for (const Sizes& sizes : checked_sizes)
    for (const DType operands : {DType::f32, DType::bf16})
      for (const bool transpose_a : {false, true})
        for (const bool transpose_b : {false, true})
          for (const Into how : {Into::set, Into::add})
            for (const std::int64_t frame : {0, 3})
              check_form(version, product, sizes, {operands, transpose_a, transpose_b, how, frame});
}

}  // namespace nemocube::cpu
