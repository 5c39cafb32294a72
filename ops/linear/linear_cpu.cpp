#include <cstring>

#include "core/parallel_for.h"
#include "ops/linear/linear_kernels.h"

namespace nemocube::cpu {

void fill_rows(const Tensor& y, const Tensor& bias) {
  const auto row_bytes = static_cast<std::size_t>(y.cols() * size_of(y.dtype()));
  const std::byte* from = bias.host_bytes();
  std::byte* to = y.host_bytes();
  parallel_for(y.rows(), 1 + 65536 / static_cast<std::int64_t>(row_bytes),
               [&](std::int64_t b, std::int64_t e) {
                 for (std::int64_t r = b; r < e; ++r)
                   std::memcpy(to + static_cast<std::size_t>(r) * row_bytes, from, row_bytes);
               });
}

}  // namespace nemocube::cpu
