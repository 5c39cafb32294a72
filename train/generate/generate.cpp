#include "train/generate/generate.h"

#include <algorithm>
#include <functional>
#include <string>

#include "core/host_wait.h"
#include "core/rng.h"
#include "ops/sample_tokens/sample_tokens.h"

namespace nemocube {
namespace {

constexpr std::size_t prompts_at_once = 32;

// The last row of every sequence that has rows.
std::vector<std::int64_t> last_rows(const Sequences& sequences) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < sequences.count(); ++i)
    if (sequences.length(i) > 0) rows.push_back(sequences.end(i) - 1);
  return rows;
}

// Of each row, [rows, vocabulary].
Tensor logits_of(ParallelModel& model, const GenerateOptions& options, const Tensor& ids,
                 const Sequences& sequences, DecodeState& state) {
  Context ctx;
  ctx.kernels = options.kernels;
  return model.logits(model.hidden(ctx, ids, sequences, &state), last_rows(sequences), sequences);
}

// The largest value of the ranks that go on together.
std::int64_t most(const ParallelModel& model, std::int64_t value) {
  return model.independent_replicas() ? value : model.largest(value);
}

}  // namespace

void check_generate_options(const GenerateOptions& o) {
  require(o.temperature >= 0, "generate: temperature must be >= 0, got ", o.temperature);
  require(o.top_p > 0 && o.top_p <= 1, "generate: top_p must lie in (0, 1], got ", o.top_p);
  require(o.top_k >= 0, "generate: top_k must be >= 0, got ", o.top_k);
  require(o.max_new_tokens >= 0, "generate: max_new_tokens must be >= 0, got ", o.max_new_tokens);
}

namespace {

void check_prompt(std::size_t i, const std::vector<std::int64_t>& ids, std::int64_t vocabulary) {
  require(!ids.empty(), "generate: prompt ", i, " has no tokens (start it with BOS or any text)");
  for (std::size_t t = 0; t < ids.size(); ++t)
    require(ids[t] >= 0 && ids[t] < vocabulary, "generate: prompt ", i, ": id ", ids[t], " at position ", t,
            " is outside the vocabulary [0, ", vocabulary, ")");
}

// Prompts [first, last).
void generate_group(ParallelModel& model, const std::vector<std::vector<std::int64_t>>& prompts,
                    std::size_t first, std::size_t last, const GenerateOptions& options,
                    const OnToken& on_token, const OnProgress& progress,
                    std::vector<std::vector<std::int64_t>>& result) {
  std::vector<std::vector<std::int64_t>> next;  // tokens to feed; empty: finished
  std::vector<RandomStream> streams;
  std::vector<std::int64_t> fed(last - first);  // tokens of each sequence that the state has seen
  for (std::size_t i = first; i < last; ++i) {
    next.push_back(prompts[i]);
    streams.emplace_back(options.seed, "generate/" + std::to_string(i));
  }
  DecodeState state = model.model().make_state(static_cast<std::int64_t>(next.size()));
  for (std::int64_t n = 0; n < options.max_new_tokens; ++n) {
    std::vector<std::int64_t> ids, lengths;
    for (const auto& tokens : next) {
      ids.insert(ids.end(), tokens.begin(), tokens.end());
      lengths.push_back(std::ssize(tokens));
    }
    const std::int64_t tokens = std::ssize(ids);
    if (most(model, tokens) == 0) break;
    const Sequences sequences = Sequences::of_lengths(lengths, fed);
    std::ranges::transform(fed, lengths, fed.begin(), std::plus<>());
    const Tensor logits = logits_of(model, options, Tensor::from(ids, {tokens}), sequences, state);
    std::vector<double> uniform;
    for (std::size_t k = 0; k < next.size(); ++k)
      if (!next[k].empty()) uniform.push_back(streams[k].uniform(static_cast<std::uint64_t>(n)));
    const Tensor drawn =
        sample_tokens(logits.to(DType::f32), {options.temperature, options.top_k, options.top_p},
                      Tensor::from(uniform, {std::ssize(uniform)}).to(logits.device()));
    const HostWaitName wait("new tokens");
    const Tensor drawn_here = drawn.to(Device::cpu);  // the host feeds and prints them
    std::int64_t row = 0;
    for (std::size_t k = 0; k < next.size(); ++k) {
      if (next[k].empty()) continue;
      const std::size_t i = first + k;
      const std::int64_t id = drawn_here.data<std::int64_t>()[row++];
      require(id >= 0, "generate: prompt ", i, ": the logits of new token ", n,
              " are not finite; are the weights damaged?");
      next[k].clear();
      if (std::ranges::find(options.stop_ids, id) != options.stop_ids.end()) continue;
      result[i].push_back(id);
      if (!on_token || !on_token(i, id)) next[k].push_back(id);
    }
    if (progress && !prompts.empty()) {
      const auto running =
          std::ranges::count_if(next, [](const auto& ids_to_feed) { return !ids_to_feed.empty(); });
      const auto whole = static_cast<std::int64_t>(last) - running;
      progress(whole * options.max_new_tokens + running * (n + 1),
               static_cast<std::int64_t>(prompts.size()) * options.max_new_tokens);
    }
  }
}

}  // namespace

std::vector<std::vector<std::int64_t>> generate(ParallelModel& model,
                                                const std::vector<std::vector<std::int64_t>>& prompts,
                                                const GenerateOptions& options, const OnToken& on_token,
                                                const OnProgress& progress) {
  check_generate_options(options);
  for (std::size_t i = 0; i < prompts.size(); ++i)
    check_prompt(i, prompts[i], model.model().config().vocab_size);
  std::vector<std::vector<std::int64_t>> result(prompts.size());
  const std::int64_t prompts_somewhere = most(model, std::ssize(prompts));
  for (std::size_t begin = 0; static_cast<std::int64_t>(begin) < prompts_somewhere;
       begin += prompts_at_once) {
    const std::size_t first = std::min(prompts.size(), begin);
    generate_group(model, prompts, first, std::min(prompts.size(), first + prompts_at_once), options,
                   on_token, progress, result);
  }
  return result;
}

}  // namespace nemocube
