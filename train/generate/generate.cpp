#include "train/generate/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "core/rng.h"

namespace nemocube {
namespace {

void check(const std::vector<std::vector<std::int64_t>>& prompts, const GenerateOptions& o) {
  require(o.temperature >= 0, "generate: temperature must be >= 0, got ", o.temperature);
  require(o.top_p > 0 && o.top_p <= 1, "generate: top_p must lie in (0, 1], got ", o.top_p);
  require(o.top_k >= 0, "generate: top_k must be >= 0, got ", o.top_k);
  require(o.max_new_tokens >= 0, "generate: max_new_tokens must be >= 0, got ", o.max_new_tokens);
  for (std::size_t i = 0; i < prompts.size(); ++i)
    require(!prompts[i].empty(), "generate: prompt ", i, " has no tokens (start it with BOS or any text)");
}

// The last row of every sequence that has rows, in f32.
Tensor last_rows(const Tensor& hidden, const Sequences& sequences) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < sequences.count(); ++i) count += sequences.length(i) > 0;
  Tensor rows = Tensor::empty({count, hidden.cols()}, hidden.dtype());
  std::int64_t r = 0;
  for (std::int64_t i = 0; i < sequences.count(); ++i)
    if (sequences.length(i) > 0) rows.narrow(0, r++, 1).copy_from(hidden.narrow(0, sequences.end(i) - 1, 1));
  return rows;
}

}  // namespace

std::int64_t sample_token(std::span<const float> logits, const GenerateOptions& o, double uniform) {
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

std::vector<std::vector<std::int64_t>> generate(NemotronH& model,
                                                const std::vector<std::vector<std::int64_t>>& prompts,
                                                const GenerateOptions& options, const OnToken& on_token) {
  check(prompts, options);
  std::vector<std::vector<std::int64_t>> result(prompts.size());
  std::vector<std::vector<std::int64_t>> next = prompts;  // tokens to feed; empty: finished
  std::vector<RandomStream> streams;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    streams.emplace_back(options.seed, "generate/" + std::to_string(i));
  DecodeState state = model.make_state(static_cast<std::int64_t>(prompts.size()));
  Context ctx;
  ctx.kernels = options.kernels;
  for (std::int64_t n = 0; n < options.max_new_tokens; ++n) {
    Sequences sequences;
    std::vector<std::int64_t> ids;
    for (const auto& tokens : next) {
      ids.insert(ids.end(), tokens.begin(), tokens.end());
      sequences.offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    if (ids.empty()) break;
    const auto tokens = static_cast<std::int64_t>(ids.size());
    const Var hidden = model.hidden(ctx, Tensor::from(ids, {tokens}), sequences, &state);
    const Tensor logits = model.logits(last_rows(hidden.value(), sequences)).to(DType::f32);
    std::int64_t row = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      if (next[i].empty()) continue;
      const std::span<const float> scores(logits.row<float>(row++), static_cast<std::size_t>(logits.cols()));
      require(std::ranges::all_of(scores, [](float s) { return std::isfinite(s); }), "generate: prompt ", i,
              ": the logits of new token ", n, " are not finite; are the weights damaged?");
      const std::int64_t id =
          sample_token(scores, options, streams[i].uniform(static_cast<std::uint64_t>(n)));
      next[i].clear();
      if (std::ranges::find(options.stop_ids, id) != options.stop_ids.end()) continue;
      result[i].push_back(id);
      if (!on_token || !on_token(i, id)) next[i].push_back(id);
    }
  }
  return result;
}

}  // namespace nemocube
