#include "data/datasets/permutation.h"

#include <numeric>
#include <utility>

#include "core/rng.h"

namespace nemocube {

std::vector<std::int64_t> permutation(std::int64_t rows, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const RandomStream stream(seed, "permutation");
  for (std::size_t i = order.size(); i-- > 1;)
    std::swap(order[i], order[static_cast<std::size_t>(stream.below(i, i + 1))]);
  return order;
}

}  // namespace nemocube
