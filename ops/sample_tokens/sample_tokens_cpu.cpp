#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "core/parallel_for.h"
#include "ops/sample_tokens/sample_tokens_kernels.h"

namespace nemocube::cpu {
namespace {

std::int64_t draw(std::span<const float> logits, const SamplingOptions& o, double uniform) {
  if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); })) return -1;
  const auto best = std::ranges::max_element(logits);
  if (o.temperature == 0) return best - logits.begin();
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int64_t v) { return static_cast<double>(logits[static_cast<std::size_t>(v)]); };
  const auto more_likely = [&](std::int64_t a, std::int64_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  };
  if (o.top_k > 0 && o.top_k < static_cast<std::int64_t>(order.size())) {
    std::ranges::nth_element(order, order.begin() + o.top_k, more_likely);
    order.resize(static_cast<std::size_t>(o.top_k));
  }
  std::ranges::sort(order, more_likely);
  std::vector<double> weight;
  double total = 0;
  for (const std::int64_t v : order) {
    weight.push_back(std::exp((logit(v) - static_cast<double>(*best)) / o.temperature));
    total += weight.back();
  }
  std::size_t kept = 0;
  double mass = 0;
  while (kept < weight.size() && (kept == 0 || mass < o.top_p * total)) mass += weight[kept++];
  double target = uniform * mass;
  for (std::size_t i = 0; i < kept; ++i) {
    target -= weight[i];
    if (target < 0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace

void sample_tokens(const Tensor& ids, const Tensor& logits, const SamplingOptions& options,
                   const Tensor& uniform) {
  const auto vocabulary = static_cast<std::size_t>(logits.cols());
  parallel_for(logits.rows(), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      ids.data<std::int64_t>()[r] =
          draw({logits.row<float>(r), vocabulary}, options, uniform.data<double>()[r]);
  });
}

}  // namespace nemocube::cpu
