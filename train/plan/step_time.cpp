#include "train/plan/step_time.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <numeric>
#include <sstream>

#include "model/flops.h"
#include "parallel/schedule/simulate.h"

namespace nemocube {
namespace {

double real(std::int64_t n) { return static_cast<double>(n); }

/// Seconds of a microbatch's passes through some blocks, by kind of work.
struct PassTimes {
  std::map<std::string, double> forward, backward;
  double sum_forward() const { return sum(forward); }
  double sum_backward() const { return sum(backward); }

 private:
  static double sum(const std::map<std::string, double>& parts) {
    return std::accumulate(parts.begin(), parts.end(), 0.0,
                           [](double all, const auto& part) { return all + part.second; });
  }
};

/// The kernels of one rank for one microbatch.
class Passes {
 public:
  Passes(const RunCosts& costs, const StepTimeOptions& o)
      : c_(costs.config()),
        o_(o),
        grid_(costs.parallel().grid),
        half_(costs.load().dtype == DType::bf16),
        tp_(real(grid_.tp)),
        tokens_(real(costs.load().microbatch.tokens()) / real(grid_.cp)),
        routed_(tokens_ / tp_),
        residual_(costs.parallel().sequence_parallel ? routed_ : tokens_),
        length_(real(costs.load().microbatch.longest())) {}

  void block(BlockKind kind) {
    const double h = real(c_.hidden_size);
    bytes(residual_ * h * (4 + 4));  // residual addition and norm: two tensors in, two out, each way
    switch (kind) {
      case BlockKind::mamba:
        return mamba(h);
      case BlockKind::attention:
        return attention(h);
      case BlockKind::mlp:
        return mlp(h, real(c_.intermediate_size));
      case BlockKind::moe:
        return experts(h);
    }
  }
  void head() {
    const double h = real(c_.hidden_size), vocabulary = real(c_.vocab_size) / tp_;
    product("products", tokens_, h, vocabulary);
    // Logits in f32 written and read, their gradient written and read.
    add_bytes(times_.forward, tokens_ * vocabulary * (8 + 2 * element()));
  }
  const PassTimes& times() const { return times_; }

 private:
  double element() const { return half_ ? 2 : 4; }
  double peak() const { return half_ ? o_.gpu.tensor_flops : o_.gpu.single_flops; }
  double reached(double share) const { return half_ ? share * peak() : 0.9 * peak(); }

  void add_bytes(std::map<std::string, double>& pass, double count) {
    pass["memory"] += count / (o_.reached.memory * o_.gpu.dram_bytes);
  }
  /// Of elements that kernels read or write, half of them in each pass.
  void bytes(double elements) {
    add_bytes(times_.forward, elements / 2 * element());
    add_bytes(times_.backward, elements / 2 * element());
  }
  /// [rows, in] x [in, out] with `copies` weights of this size, and its two gradients.
  void product(const char* part, double rows, double in, double out, double copies = 1) {
    const double share = part == std::string_view("experts") ? o_.reached.experts : o_.reached.products;
    const double arithmetic = 2 * rows * in * out / reached(share), weight = copies * in * out,
                 rows_bytes = rows * (in + out) * element(), dram = o_.gpu.dram_bytes;
    times_.forward[part] += std::max(arithmetic, (rows_bytes + weight * element()) / dram);
    times_.backward[part] += std::max(arithmetic, (rows_bytes + weight * element()) / dram) +
                             std::max(arithmetic, (rows_bytes + weight * 8) / dram);
  }
  void mamba(double h) {
    const double d = real(c_.mamba_inner()) / tp_, states = real(c_.state_width()) / tp_,
                 chunk = real(c_.chunk_size);
    product("products", tokens_, h, real(c_.in_proj_width()) / tp_);
    product("products", tokens_, d, h);
    const double scan = tokens_ * (2 * chunk * states + 2 * chunk * d + 4 * d * real(c_.ssm_state_size));
    times_.forward["scan"] += scan / reached(o_.reached.scan_forward);
    times_.backward["scan"] += 2 * scan / reached(o_.reached.scan_backward);
    add_bytes(times_.forward, tokens_ * element() * (2 * real(c_.conv_dim()) / tp_ + 3 * d));
    add_bytes(times_.backward, tokens_ * element() * (3 * real(c_.conv_dim()) / tp_ + 5 * d));
  }
  void attention(double h) {
    const double heads = real(c_.num_attention_heads) / tp_,
                 kv = std::max(1.0, real(c_.num_key_value_heads) / tp_), width = real(c_.head_dim);
    product("products", tokens_, h, width * (heads + 2 * kv));
    product("products", tokens_, width * heads, h);
    const double scores = tokens_ * 4 * heads * width * (length_ + 1) / 2;
    times_.forward["attention"] += scores / reached(o_.reached.attention_forward);
    times_.backward["attention"] += 2.5 * scores / reached(o_.reached.attention_backward);
  }
  void mlp(double h, double width) {
    product("products", tokens_, h, width / tp_);
    product("products", tokens_, width / tp_, h);
    bytes(tokens_ * width / tp_ * (2 + 3));
  }
  void experts(double h) {
    const double in = real(c_.expert_width()), share = real(grid_.expt_tp),
                 choices = real(c_.num_experts_per_tok), width = real(c_.moe_intermediate_size) / share,
                 rows = routed_ * choices * share, own = real(c_.n_routed_experts) / real(grid_.ep);
    product("products", routed_, h, real(c_.n_routed_experts));
    if (c_.moe_latent_size > 0) {
      product("products", routed_, h, in);
      product("products", routed_, in, h);
    }
    product("experts", rows, in, width, own);
    product("experts", rows, width, in, own);
    bytes(rows * width * (2 + 3));
    bytes((routed_ + routed_ * choices) * in * 4);  // to the experts' rows and back, each way
    mlp(h, real(c_.moe_shared_expert_intermediate_size));
  }

  const NemotronHConfig& c_;
  const StepTimeOptions& o_;
  const GridSizes& grid_;
  bool half_;
  double tp_, tokens_, routed_, residual_, length_;
  PassTimes times_;
};

bool is_data_parallel(const std::string& group) {
  return group.starts_with("dp_") || group.starts_with("expt_dp");
}

/// How a rank's group lies on machines.
struct Spread {
  double size = 1, of_node = 1;  ///< ranks of the group, and those of the rank's node
};
Spread spread_of(const RunCosts& costs, const std::string& group, int rank, std::int64_t gpus_of_node) {
  if (group == "world") {
    const double ranks = real(costs.parallel().grid.ranks());
    return {ranks, std::min(ranks, real(gpus_of_node))};
  }
  Spread spread;
  for (const auto& row : costs.groups().all()) {
    if (row.name != group || !row.groups) continue;
    const std::vector<int> ranks = row.groups->ranks(row.groups->group_of(rank));
    spread.size = real(std::ssize(ranks));
    spread.of_node = real(
        std::ranges::count_if(ranks, [&](int other) { return other / gpus_of_node == rank / gpus_of_node; }));
  }
  return spread;
}

double seconds_of(const RankTraffic::Sum& sum, Operation operation, const Spread& spread,
                  const LinkRates& links) {
  const double bytes = real(sum.bytes), calls = real(sum.calls);
  if (spread.of_node >= spread.size) return bytes / links.node_bytes + calls * links.node_latency;
  if (operation == Operation::all_to_all || operation == Operation::exchange) {
    const double away = (spread.size - spread.of_node) / (spread.size - 1);
    return std::max(bytes * away / links.network_bytes, bytes * (1 - away) / links.node_bytes) +
           calls * links.network_latency;
  }
  return bytes / std::min(links.node_bytes, spread.of_node * links.network_bytes) +
         calls * links.network_latency;
}

/// Seconds of a step's communication by group.
std::map<std::string, double> communication(RunCosts& costs, int rank, const LinkRates& links) {
  std::map<std::string, double> seconds;
  for (const auto& [key, sum] : costs.traffic(rank))
    seconds[key.first] +=
        seconds_of(sum, key.second, spread_of(costs, key.first, rank, links.gpus_of_node), links);
  return seconds;
}

double optimizer_seconds(RunCosts& costs, int rank, const StepTimeOptions& o) {
  std::map<std::string, double> bytes;
  for (const MemoryItem& item : costs.memory(rank)) bytes[item.what] += real(item.bytes);
  const double masters = bytes["masters"], moments = bytes["moments"];
  const double values = masters > 0 ? masters : bytes["weights"];
  // Masters and moments are read and written, gradients read twice: once for their norm. A bf16 copy is written.
  const double moved = 2 * (values + moments) + 2 * values + (masters > 0 ? values / 2 : 0);
  return moved / (o.reached.optimizer * o.gpu.dram_bytes);
}

/// What the passes of a pipeline rank take.
struct RankPasses {
  PassTimes times;
  double recomputed = 0;
};
RankPasses passes_of_stage(const RunCosts& costs, const ModelChunk& chunk, const StepTimeOptions& o) {
  Passes blocks(costs, o), whole(costs, o);
  const std::int64_t layers = costs.config().num_layers();
  for (std::int64_t i = chunk.first_block; i < std::min(chunk.end_block, layers); ++i)
    for (Passes* passes : {&blocks, &whole})
      passes->block(costs.config().blocks[static_cast<std::size_t>(i)]);
  if (chunk.head) whole.head();
  return {whole.times(), costs.load().checkpointing ? blocks.times().sum_forward() : 0};
}

/// What a step of the ranks of one pipeline rank consists of.
struct StageStep {
  std::map<std::string, double> parts, exposed;
  double passes = 0, reduced = 0;  ///< of all microbatches; of data parallelism
};

}  // namespace

StepTime step_time(RunCosts& costs, const StepTimeOptions& o) {
  const ParallelPlan& plan = costs.parallel();
  const StepLoad& load = costs.load();
  const double microbatches = real(load.microbatches);
  StepTime result;
  result.tokens = real(load.microbatch.tokens()) * microbatches * real(plan.grid.dp());
  result.model_flops =
      3 * result.tokens * forward_flops_per_token(costs.config(), real(load.microbatch.longest())).total();

  std::vector<StageStep> ranks(static_cast<std::size_t>(plan.grid.pp));
  std::vector<double> forward, backward;
  for (std::size_t s = 0; s < plan.pipeline.stages.size(); ++s) {
    const RankPasses stage = passes_of_stage(costs, plan.pipeline.stages[s], o);
    StageStep& rank = ranks[static_cast<std::size_t>(plan.pipeline.rank_of_stage[s])];
    for (const auto& parts : {stage.times.forward, stage.times.backward})
      for (const auto& [name, seconds] : parts) rank.parts[name] += microbatches * seconds;
    if (stage.recomputed > 0) rank.parts["recomputed"] += microbatches * stage.recomputed;
    forward.push_back(stage.times.sum_forward());
    backward.push_back(stage.times.sum_backward() + stage.recomputed);
  }
  std::vector<double> stretch(ranks.size(), 1);  // what waits inside passes lengthens them
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    StageStep& rank = ranks[r];
    const int first = static_cast<int>(r) * static_cast<int>(plan.grid.ranks_of_stage());
    for (const auto& [name, seconds] : rank.parts) rank.passes += seconds;
    double waits = 0;
    for (const auto& [group, seconds] : communication(costs, first, o.links)) {
      if (is_data_parallel(group)) {
        rank.reduced += seconds;
      } else {
        rank.exposed[group] += seconds;
        waits += seconds;
      }
    }
    stretch[r] = (rank.passes + waits) / rank.passes;
    rank.parts["optimizer"] = optimizer_seconds(costs, first, o);
  }

  const double all_forward = std::accumulate(forward.begin(), forward.end(), 0.0),
               ratio = std::accumulate(backward.begin(), backward.end(), 0.0) / all_forward;
  ActionCosts actions{
      .forward = 1, .backward = ratio, .backward_input = ratio / 2, .backward_weight = ratio / 2};
  for (std::size_t s = 0; s < forward.size(); ++s)
    actions.stages.push_back((forward[s] + backward[s]) / (1 + ratio) *
                             stretch[static_cast<std::size_t>(plan.pipeline.rank_of_stage[s])]);
  const double passes = simulate(plan.pipeline.schedule(plan.grid.pp, load.microbatches), actions).makespan;

  double longest = -1;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    StageStep rank = ranks[r];
    const double shown = std::max(0.0, rank.reduced - rank.passes), optimizer = rank.parts.at("optimizer");
    const double seconds = passes + shown + optimizer, busy = rank.passes * stretch[r];
    if (busy + shown + optimizer <= longest) continue;
    longest = busy + shown + optimizer;
    if (shown > 0) rank.exposed["data parallel"] = shown;
    result.seconds = seconds;
    result.hidden = rank.reduced - shown;
    result.idle = ranks.size() > 1 ? passes - busy : 0;
    result.compute.clear();
    result.exposed.clear();
    for (const auto& [name, value] : rank.parts) result.compute.push_back({name, value});
    for (const auto& [name, value] : rank.exposed) result.exposed.push_back({name, value});
  }
  std::ranges::sort(result.compute, std::ranges::greater{}, &StepTime::Part::seconds);
  std::ranges::sort(result.exposed, std::ranges::greater{}, &StepTime::Part::seconds);
  return result;
}

std::string to_string(const StepTime& time, const std::string& gpu, std::int64_t ranks,
                      const StepTimeOptions& o) {
  std::ostringstream text;
  const auto milliseconds = [](double seconds) {
    std::ostringstream number;
    number << std::setprecision(3) << 1e3 * seconds;
    return number.str();
  };
  const auto list = [&](const std::vector<StepTime::Part>& parts) {
    std::string words;
    for (const StepTime::Part& part : parts)
      if (part.seconds >= time.seconds / 1000)
        words += cat(words.empty() ? "" : ", ", part.name, " ", milliseconds(part.seconds));
    return words.empty() ? "none" : words;
  };
  const double per_gpu = time.tokens / time.seconds / real(ranks);
  text << "time    about " << std::setprecision(3) << time.seconds << " s a step on " << gpu << ": "
       << std::llround(time.tokens / time.seconds) << " tokens/s, " << std::llround(per_gpu)
       << " for each GPU, "
       << std::llround(100 * time.model_flops / time.seconds / (real(ranks) * o.gpu.tensor_flops))
       << " % of the peak by model operations\n"
       << "        in ms: " << list(time.compute)
       << "; communication that nothing hides: " << list(time.exposed)
       << "; hidden: " << milliseconds(time.hidden) << "; pipeline idle: " << milliseconds(time.idle) << '\n'
       << "        taken for granted: shares of peak rates that bf16 kernels reached on an H200 "
          "(docs/measured.md), "
       << o.links.gpus_of_node << " GPUs a node, NVLink " << o.links.node_bytes * 1e-9 << " GB/s, network "
       << o.links.network_bytes * 1e-9
       << " GB/s a GPU, experts equally loaded, data-parallel collectives beside the passes, a host that "
          "keeps ahead\n";
  return text.str();
}

}  // namespace nemocube
