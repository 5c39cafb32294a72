#include <omp.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "core/parallel_for.h"
#include "ops/grouped_linear/grouped_linear_kernels.h"
#include "ops/matmul/matmul.h"

namespace nemocube::cpu {
namespace {

using Offsets = std::span<const std::int64_t>;

// Products are cut into parts, so that unequal groups spread over the threads. oneDNN prepares every distinct
// size of product once. The bounds on the sizes of parts limit the number of distinct sizes, however tokens
// are routed.
constexpr std::int64_t most_rows = 128;      // rows of a part in y and dx
constexpr std::int64_t most_summands = 256;  // rows summed by one product of dW
constexpr std::int64_t most_outputs = 256;   // rows of W[e] in a part of dW

struct Part {
  std::int64_t group = 0, begin = 0, end = 0;
};

// Cuts [begin, end) into equal pieces of at most `most`.
void cut(std::vector<Part>& parts, std::int64_t group, std::int64_t begin, std::int64_t end,
         std::int64_t most) {
  const std::int64_t pieces = (end - begin + most - 1) / most;
  const std::int64_t length = pieces == 0 ? 0 : (end - begin + pieces - 1) / pieces;
  for (std::int64_t at = begin; at < end; at += length)
    parts.push_back({group, at, std::min(at + length, end)});
}

std::vector<Part> cut_rows(Offsets offsets) {
  std::vector<Part> parts;
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
    cut(parts, static_cast<std::int64_t>(e), offsets[e], offsets[e + 1], most_rows);
  return parts;
}

// With enough parts, each thread takes the next part and forms its products alone. With few parts, all
// threads work on one part after another.
template <class Fn>
void run_parts(const std::vector<Part>& parts, Fn&& fn) {
  const auto count = static_cast<std::int64_t>(parts.size());
  const std::int64_t threads = omp_get_max_threads();
  if (count < 2 * threads) {
    for (const Part& part : parts) fn(part);
    return;
  }
  std::atomic<std::int64_t> next{0};
  parallel_for(threads, 1, [&](std::int64_t, std::int64_t) {
    for (std::int64_t i = next++; i < count; i = next++) fn(parts[static_cast<std::size_t>(i)]);
  });
}

Tensor rows_of(const Tensor& t, const Part& part) { return t.narrow(0, part.begin, part.end - part.begin); }

Offsets checked(const Tensor& offsets, std::int64_t rows) {
  const Offsets values(offsets.data<std::int64_t>(), static_cast<std::size_t>(offsets.numel()));
  require(values.front() == 0 && values.back() == rows && std::ranges::is_sorted(values),
          "grouped_linear: offsets: want values ascending from 0 to ", rows, ", got ", values.front(), " to ",
          values.back(), std::ranges::is_sorted(values) ? "" : ", not ascending");
  return values;
}

}  // namespace

void grouped_linear_forward(const Output& y, const Tensor& x, const Tensor& offsets, const Tensor& weight) {
  const Offsets groups = checked(offsets, x.dim(0));
  run_parts(cut_rows(groups), [&](const Part& part) {
    matmul_untimed({rows_of(y.to, part), y.how}, rows_of(x, part), false, weight.select(part.group), true);
  });
}

void grouped_linear_backward_input(const Output& dx, const Tensor& dy, const Tensor& offsets,
                                   const Tensor& weight) {
  const Offsets groups = checked(offsets, dy.dim(0));
  run_parts(cut_rows(groups), [&](const Part& part) {
    matmul_untimed({rows_of(dx.to, part), dx.how}, rows_of(dy, part), false, weight.select(part.group),
                   false);
  });
}

void grouped_linear_backward_weight(const Output& dweight, const Tensor& dy, const Tensor& offsets,
                                    const Tensor& x) {
  const Offsets groups = checked(offsets, dy.dim(0));
  std::vector<Part> parts;
  for (std::int64_t e = 0; e < dweight.to.dim(0); ++e) cut(parts, e, 0, dweight.to.dim(1), most_outputs);
  run_parts(parts, [&](const Part& part) {
    const auto e = static_cast<std::size_t>(part.group);
    const Tensor to = rows_of(dweight.to.select(part.group), part);
    std::vector<Part> sums;
    cut(sums, part.group, groups[e], groups[e + 1], most_summands);
    if (sums.empty() && dweight.how == Into::set) to.zero();
    Into how = dweight.how;
    for (const Part& sum : sums) {
      const Tensor g = rows_of(dy, sum).narrow(-1, part.begin, part.end - part.begin);
      matmul_untimed({to, how}, g, true, rows_of(x, sum), false);
      how = Into::add;
    }
  });
}

}  // namespace nemocube::cpu
