#include "parallel/expert_parallel/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace nemocube {

ExpertLoad expert_load(const Tensor& counts) {
  check_dtype("expert_load: counts", counts, DType::i64);
  require(counts.ndim() == 1 && counts.numel() > 0, "expert_load: counts: want shape [E], E > 0, got ",
          counts.shape());
  const auto size = static_cast<double>(counts.numel());
  const std::span tokens(counts.data<std::int64_t>(), static_cast<std::size_t>(counts.numel()));
  const auto [least, most] = std::ranges::minmax(tokens);
  ExpertLoad load{.least = least, .most = most};
  load.mean = static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0})) / size;
  if (load.mean == 0) return load;
  double squares = 0;
  for (const std::int64_t t : tokens) squares += std::pow(static_cast<double>(t) - load.mean, 2);
  load.imbalance = static_cast<double>(most) / load.mean;
  load.variation = std::sqrt(squares / size) / load.mean;
  return load;
}

}  // namespace nemocube
