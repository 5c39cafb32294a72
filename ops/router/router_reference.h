#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/router/router.h"

/// The router's definition in f64, one token at a time, for the tests. Logits of moderate size.
namespace nemocube::testing {

struct RoutingReference {
  std::vector<std::vector<std::size_t>> experts;  // per token, ascending
  std::vector<std::vector<double>> weights;
  std::vector<std::int64_t> counts;
  double aux_loss = 0, seq_aux_loss = 0, z_loss = 0;
  std::vector<double> global_aux_loss;  // of each sequence, as if each sequence were one microbatch
};

/// Indices of the k largest, ties lowest first, in ascending order.
inline std::vector<std::size_t> top(const std::vector<double>& v, std::int64_t k) {
  std::vector<std::size_t> order(v.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return v[a] > v[b]; });
  order.resize(static_cast<std::size_t>(k));
  std::ranges::sort(order);
  return order;
}

// The balancing loss from the counts of tokens [first, end) and the shares of tokens [begin, end).
inline double switch_loss(const std::vector<std::vector<double>>& scores, std::int64_t first,
                          std::int64_t begin, std::int64_t end, std::int64_t k) {
  const std::size_t n = scores.empty() ? 0 : scores[0].size();
  std::vector<double> count(n, 0), share(n, 0);
  for (std::int64_t t = first; t < end; ++t) {
    const auto& s = scores[static_cast<std::size_t>(t)];
    const double z = std::accumulate(s.begin(), s.end(), 1e-20);
    for (std::size_t i = 0; t >= begin && i < n; ++i) share[i] += s[i] / z;
    for (const std::size_t i : top(s, k)) count[i] += 1;
  }
  return std::inner_product(count.begin(), count.end(), share.begin(), 0.0) * static_cast<double>(n) /
         (static_cast<double>(k) * static_cast<double>(end - first) * static_cast<double>(end - begin));
}

inline RoutingReference route_reference(const Tensor& x, const Tensor& gate, const Tensor& bias,
                                        const RouterOptions& o, const Sequences& sequences) {
  const std::int64_t tokens = x.dim(0), hidden = x.dim(1);
  const auto n = static_cast<std::size_t>(o.experts),
             group_size = static_cast<std::size_t>(o.experts / o.groups);
  const auto xs = x.to_vector(), gs = gate.to_vector();
  const auto b = bias.defined() ? bias.to_vector() : std::vector<double>(n, 0);
  RoutingReference r;
  r.counts.assign(n, 0);
  std::vector<std::vector<double>> scores;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<double> logits(n), s(n), biased(n), group;
    double exps = 0;
    for (std::size_t i = 0; i < n; ++i) {
      double l = 0;
      for (std::int64_t c = 0; c < hidden; ++c)
        l += xs[static_cast<std::size_t>(t * hidden + c)] *
             gs[i * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(c)];
      exps += std::exp(l);
      logits[i] = l;
      s[i] = 1 / (1 + std::exp(-l));
      biased[i] = s[i] + b[i];
    }
    for (std::size_t i = 0; o.scores == RouterScores::softmax && i < n; ++i) {
      s[i] = std::exp(logits[i]) / exps;
      biased[i] = s[i] + b[i];
    }
    r.z_loss += o.z_loss_coef * std::pow(std::log(exps), 2) / static_cast<double>(tokens);
    for (std::size_t g = 0; g < n; g += group_size) {
      std::vector<double> members(biased.begin() + static_cast<std::ptrdiff_t>(g),
                                  biased.begin() + static_cast<std::ptrdiff_t>(g + group_size));
      std::ranges::sort(members, std::greater{});
      group.push_back(members[0] + (group_size > 1 ? members[1] : 0));
    }
    const auto kept = top(group, o.top_groups);
    std::vector<double> masked(n, -std::numeric_limits<double>::infinity());
    for (const std::size_t g : kept)
      std::copy_n(biased.begin() + static_cast<std::ptrdiff_t>(g * group_size), group_size,
                  masked.begin() + static_cast<std::ptrdiff_t>(g * group_size));
    r.experts.push_back(top(masked, o.top_k));
    for (std::size_t j = 0, k = r.experts.back().size(); o.balanced && j < k; ++j)
      r.experts.back()[j] = (static_cast<std::size_t>(t) * k + j) % n;
    std::ranges::sort(r.experts.back());
    std::vector<double> w;
    for (const std::size_t e : r.experts.back()) {
      w.push_back(s[e]);
      ++r.counts[e];
    }
    const double least = o.scores == RouterScores::softmax ? 0 : 1e-20;
    const double z = o.normalise ? std::accumulate(w.begin(), w.end(), least) : 1;
    for (double& v : w) v = v / z * o.scaling;
    r.weights.push_back(w);
    scores.push_back(s);
  }
  if (tokens == 0) return r;
  r.aux_loss = o.aux_loss_coef * switch_loss(scores, 0, 0, tokens, o.top_k);
  double filled = 0;
  for (std::int64_t q = 0; q < sequences.count(); ++q) {
    r.global_aux_loss.push_back(0);
    const std::int64_t begin = sequences.begin(q), end = sequences.end(q);
    if (begin == end) continue;
    filled += 1;
    r.seq_aux_loss += o.seq_aux_loss_coef * switch_loss(scores, begin, begin, end, o.top_k);
    r.global_aux_loss.back() = o.global_aux_loss_coef * switch_loss(scores, 0, begin, end, o.top_k);
  }
  r.seq_aux_loss /= filled;
  return r;
}

}  // namespace nemocube::testing
