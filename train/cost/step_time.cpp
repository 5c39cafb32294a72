#include "train/cost/step_time.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <numeric>
#include <sstream>

#include "model/block_passes.h"
#include "model/blocks/block_type.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"
#include "model/flops.h"
#include "parallel/schedule/simulate.h"
#include "parallel/tensor_parallel/plan.h"

namespace nemocube {
namespace {

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

/// The time of a rank's kernels for one microbatch.
class Passes final : public BlockWork {
 public:
  Passes(const RunCosts& costs, const StepTimeOptions& o)
      : c_(costs.config()),
        o_(o),
        grid_(costs.parallel().grid),
        half_(costs.load().dtype == DType::bf16),
        rows_{.all = real(costs.load().microbatch.tokens()) / real(grid_.cp),
              .length = real(costs.load().microbatch.longest())},
        residual_(rows_.all) {
    rows_.routed = rows_.all / real(grid_.tp);
    if (costs.parallel().sequence_parallel) residual_ = rows_.routed;
    rows_.stream = residual_;
  }

  void block(BlockKind kind, const BlockConfig& config) {
    const double moved = residual_ * real(c_.hidden_size) * 4;
    numbers(moved, moved);  // residual addition and norm: two tensors in, two out, each way
    if (has_norm_after(config.residual)) numbers(moved / 2, moved * 3 / 4);
    kind->add_work(*this, config, rows_, {grid_.tp, grid_.expt_tp, grid_.ep});
  }
  /// Per-layer inputs of the front, all of them on each rank.
  void front() {
    const double width = real(c_.count(per_layer_input_block)) * real(c_.per_layer_input.size);
    if (width == 0) return;
    product(Part::products, residual_, real(c_.hidden_size), width, 1);
    numbers(8 * residual_ * width, 8 * residual_ * width);  // a lookup, a norm, a sum, and three factors
  }
  void head() {
    const double vocabulary = real(c_.vocab_size) / real(grid_.tp);
    product(Part::products, rows_.all, real(c_.hidden_size), vocabulary, 1);
    // Logits in f32 written and read, their gradient written and read.
    add_bytes(times_.forward, rows_.all * vocabulary * (8 + 2 * element()));
    if (c_.logit_scale != 1)
      numbers(2 * residual_ * real(c_.hidden_size), 2 * residual_ * real(c_.hidden_size));
    if (!c_.normalized_head) return;
    // Its rows are read and written; in backward they and two gradients in f32 are.
    const double weight = vocabulary * real(c_.hidden_size);
    add_bytes(times_.forward, weight * 2 * element());
    add_bytes(times_.backward, weight * (8 + element()));
  }
  /// After the layer that has the tensor: the gradient of a frozen weight is not formed, and an adapter has
  /// products of its own.
  void tensor(const TensorSpec& spec, const TensorParallelPlan& plan) {
    if (spec.shape.ndim() < 2) return;
    if (spec.factor != LoraFactor::none)
      adapter(spec, plan.style(spec));
    else if (spec.frozen)
      frozen(spec);
  }
  void no_backward() { times_.backward.clear(); }
  void add(const Passes& other) {
    for (const auto& [name, seconds] : other.times_.forward) times_.forward[name] += seconds;
    for (const auto& [name, seconds] : other.times_.backward) times_.backward[name] += seconds;
  }
  /// eh_proj of a depth of multi-token prediction, on the rows of the residual stream, all of it on each
  /// rank.
  void join() { product(Part::products, residual_, 2 * real(c_.hidden_size), real(c_.hidden_size), 1); }
  const PassTimes& times() const { return times_; }

  void product(Part part, double rows, double in, double out, double copies) override {
    const double one = of_product(part, rows, in, out, copies * in * out * element());
    times_.forward[name_of(part)] += one;
    times_.backward[name_of(part)] += one + of_weight_gradient(part, rows, in, out, copies);
  }
  void operations(Part part, double forward, double backward) override {
    const ReachedShares& r = o_.reached;
    if (part == Part::convolution) return;  // bound by the bytes that numbers() counts
    const bool scan = part == Part::scan;
    expect(scan || part == Part::attention, "operations that no rate is known of");
    const char* name = scan ? "scan" : "attention";
    times_.forward[name] += forward / reached(scan ? r.scan_forward : r.attention_forward);
    times_.backward[name] += backward / reached(scan ? r.scan_backward : r.attention_backward);
  }
  void numbers(double forward, double backward) override {
    add_bytes(times_.forward, forward * element());
    add_bytes(times_.backward, backward * element());
  }

 private:
  static Part part_of(const TensorSpec& spec) { return spec.experts ? Part::experts : Part::products; }
  double copies_of(const TensorSpec& spec) const {
    return spec.experts ? real(spec.shape[0]) / real(grid_.ep) : 1;
  }
  double expert_rows(const TensorSpec& spec) const {
    return rows_.routed * real(c_.of_tensor(spec.id).moe.num_experts_per_tok) * real(grid_.expt_tp);
  }
  void frozen(const TensorSpec& spec) {
    const bool of_join = spec.module.member == mtp_join, whole = of_join || spec.cut->always_own_rows;
    const double ranks = spec.experts ? real(grid_.expt_tp)
                         : whole      ? 1
                                      : real(grid_.tp),
                 rows = spec.experts                ? expert_rows(spec)
                        : of_join                   ? residual_
                        : spec.cut->always_own_rows ? rows_.routed
                                                    : rows_.all;
    const int last = spec.shape.ndim() - 1;
    times_.backward[name_of(part_of(spec))] -= of_weight_gradient(
        part_of(spec), rows, real(spec.shape[last]), real(spec.shape[last - 1]) / ranks, copies_of(spec));
  }
  /// The factor that is not cut (TensorCuts) works on each rank.
  void adapter(const TensorSpec& spec, TensorStyle style) {
    const bool is_a = spec.factor == LoraFactor::a;
    const bool by_outputs = style == TensorStyle::colwise || style == TensorStyle::vocab_parallel ||
                            style == TensorStyle::expert_colwise,
               by_inputs = style == TensorStyle::rowwise || style == TensorStyle::expert_rowwise;
    const double ranks = spec.experts ? real(grid_.expt_tp) : real(grid_.tp);
    const int last = spec.shape.ndim() - 1;
    const double in = real(spec.shape[last]) / (is_a && by_inputs ? ranks : 1),
                 out = real(spec.shape[last - 1]) / (!is_a && by_outputs ? ranks : 1);
    const double rows = spec.experts                              ? expert_rows(spec)
                        : spec.cut->always_own_rows               ? rows_.routed
                        : style == TensorStyle::sequence_parallel ? residual_
                                                                  : rows_.all;
    const Part part = part_of(spec);
    product(part, rows, in, out, copies_of(spec));
    if (spec.frozen)
      times_.backward[name_of(part)] -= of_weight_gradient(part, rows, in, out, copies_of(spec));
  }
  static const char* name_of(Part part) { return part == Part::experts ? "experts" : "products"; }
  double of_product(Part part, double rows, double in, double out, double weight_bytes) const {
    const double share = part == Part::experts ? o_.reached.experts : o_.reached.products;
    return std::max(2 * rows * in * out / reached(share),
                    (rows * (in + out) * element() + weight_bytes) / o_.gpu.dram_bytes);
  }
  double of_weight_gradient(Part part, double rows, double in, double out, double copies) const {
    return of_product(part, rows, in, out, copies * in * out * 8);
  }
  double element() const { return half_ ? 2 : 4; }
  double peak() const { return half_ ? o_.gpu.tensor_flops : o_.gpu.single_flops; }
  double reached(double share) const { return half_ ? share * peak() : 0.9 * peak(); }

  void add_bytes(std::map<std::string, double>& pass, double count) {
    pass["memory"] += count / (o_.reached.memory * o_.gpu.dram_bytes);
  }

  const ModelConfig& c_;
  const StepTimeOptions& o_;
  const GridSizes& grid_;
  bool half_;
  BlockRows rows_;
  double residual_;
  PassTimes times_;
};

/// Whether the group carries gathered weights and summed gradients.
bool is_data_parallel(Group group) {
  using enum Group;
  return group == dp_cp || group == dp_shard || group == dp_shard_cp || group == dp_replicate ||
         group == expt_dp;
}

/// How a rank's group lies on machines.
struct Spread {
  double size = 1, of_node = 1;  ///< ranks of the group, and those of the rank's node
};
Spread spread_of(const RunCosts& costs, Group group, int rank, std::int64_t gpus_of_node) {
  if (group == Group::world) {
    const double ranks = real(costs.parallel().grid.ranks());
    return {ranks, std::min(ranks, real(gpus_of_node))};
  }
  Spread spread;
  for (const auto& row : costs.groups().all()) {
    if (row.group != group || !row.groups) continue;
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
std::map<Group, double> communication(RunCosts& costs, int rank, const LinkRates& links) {
  std::map<Group, double> seconds;
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
  // Masters and moments are read and written, gradients read twice: once for their norm. A bf16 copy is
  // written.
  const double moved = 2 * (values + moments) + 2 * values + (masters > 0 ? values / 2 : 0);
  return moved / (o.reached.optimizer * o.gpu.dram_bytes);
}

/// What the passes of a pipeline rank take.
struct RankPasses {
  PassTimes times;
  double recomputed = 0;
};
RankPasses passes_of_stage(const RunCosts& costs, const ModelChunk& chunk, const StepTimeOptions& o) {
  const ModelSetup& setup = costs.setup();
  const ModelConfig& config = setup.config;
  const TensorParallelPlan plan(setup, costs.parallel().sequence_parallel, costs.parallel().tensor_rules);
  std::map<TensorName, std::vector<const TensorSpec*>> tensors;  // by mixer; of others by their modules
  const std::vector<TensorSpec> specs = tensor_specs(setup);
  for (const TensorSpec& spec : specs)
    tensors[spec.module.in_mixer() ? spec.module.whole() : spec.module].push_back(&spec);
  const auto add_tensors = [&](Passes& passes, const TensorName& name) {
    for (const TensorSpec* spec : tensors[name]) passes.tensor(*spec, plan);
  };
  Passes recomputed(costs, o), whole(costs, o);
  const auto add_block = [&](BlockKind kind, const TensorName& name, bool backward) {
    Passes block(costs, o);
    block.block(kind, config.of_tensor(name));
    add_tensors(block, mixer_of(name));
    if (backward)
      recomputed.add(block);
    else
      block.no_backward();
    whole.add(block);
  };
  const auto add_head = [&] {
    whole.head();
    add_tensors(whole, head_name());
  };
  const std::vector<BlockPass> passes = block_passes(setup, chunk);
  std::size_t n = 0;
  if (chunk.embeddings) {
    whole.front();
    add_tensors(whole, per_layer_model_projection_name());
  }
  for (std::int64_t i = chunk.first_block; i < std::min(chunk.end_block, config.num_layers()); ++i)
    add_block(config.blocks[static_cast<std::size_t>(i)], block_name(i), passes[n++].backward);
  if (chunk.head) add_head();
  const std::vector<DepthPasses> depths = chunk.head ? mtp_passes(setup, chunk) : std::vector<DepthPasses>();
  for (std::size_t k = 0; k < depths.size(); ++k) {
    const std::size_t size = config.mtp_blocks.size();
    Passes join(costs, o);
    join.join();
    add_tensors(join, depth_name(setup.block_of_depth(k), mtp_join));
    if (!depths[k].join.backward) join.no_backward();
    whole.add(join);
    for (std::size_t i = 0; i < size; ++i)
      add_block(config.mtp_blocks[i], depth_name(setup.block_of_depth(k, i)), depths[k].blocks[i].backward);
    add_head();
  }
  return {whole.times(), costs.load().checkpointing ? recomputed.times().sum_forward() : 0};
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
      result.tokens * training_flops_per_token(costs.setup(), real(load.microbatch.longest())).total();

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
    const int first = static_cast<int>(plan.grid.first_rank_of_stage(static_cast<std::int64_t>(r)));
    for (const auto& [name, seconds] : rank.parts) rank.passes += seconds;
    double waits = 0;
    for (const auto& [group, seconds] : communication(costs, first, o.links)) {
      if (is_data_parallel(group)) {
        rank.reduced += seconds;
      } else {
        rank.exposed[std::string(name_of(group))] += seconds;
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
