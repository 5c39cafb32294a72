#include "train/bench/bench_step.h"

#include <array>
#include <chrono>
#include <fstream>
#include <optional>
#include <string>

#include "core/allocator.h"
#include "core/cuda/runtime.h"
#include "core/host_wait.h"
#include "core/rng.h"
#include "model/flops.h"
#include "train/assemble/run_batches.h"
#include "train/bench/timing.h"
#include "train/model_io/model_io.h"
#include "train/ranks/run_ranks.h"
#include "train/step/train_step.h"

namespace nemocube {
namespace {

/// The sequences of rank `rank`, of o.batch in all.
TokenBatch random_batch(const BenchStepOptions& o, std::int64_t vocab, std::int64_t rank,
                        std::int64_t ranks) {
  const std::int64_t first = o.batch * rank / ranks, rows = o.batch * (rank + 1) / ranks - first;
  const std::int64_t tokens = rows * o.seq;
  const Tensor ids = Tensor::empty({tokens}, DType::i64, Device::cpu);     // as of a loader
  const Tensor labels = Tensor::empty({tokens}, DType::i64, Device::cpu);  // as of a loader
  const RandomStream stream(1234, "bench/tokens");
  for (std::int64_t t = 0; t < tokens; ++t)
    ids.data<std::int64_t>()[t] = static_cast<std::int64_t>(
        stream.below(static_cast<std::uint64_t>(first * o.seq + t), static_cast<std::uint64_t>(vocab)));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const bool last = t % o.seq == o.seq - 1;
    labels.data<std::int64_t>()[t] = last ? -100 : ids.data<std::int64_t>()[t + 1];
  }
  return {ids, labels, Sequences::uniform(rows, o.seq)};
}

/// Microbatches of the size of the largest one.
BatchCapacity capacity_of(const BenchStepOptions& o, std::int64_t parts) {
  const std::int64_t sequences = (o.batch + parts - 1) / parts;
  return {sequences * o.seq, sequences};
}

std::vector<BenchStepResult::RankTimes> times_of_ranks(const RunRanks& ranks, const LoadedModel& model,
                                                       const BenchStepResult& own, const CommStats& before,
                                                       double steps) {
  if (!ranks.several()) return {};
  const CommStats now = ranks.total_stats(*model.groups);
  const auto blocked = own.zones.find("comm/blocked");
  const double waiting = (now.waiting_seconds - before.waiting_seconds) / steps;
  const std::array<double, 5> mine{
      own.median_seconds - (blocked == own.zones.end() ? 0 : blocked->second.seconds),
      (now.seconds - before.seconds) / steps - waiting, waiting,
      static_cast<double>(now.bytes_sent - before.bytes_sent) / steps, static_cast<double>(own.peak_bytes)};
  std::vector<BenchStepResult::RankTimes> times;
  for (const auto& t : ranks.world_group()->host_all_gather(mine))
    times.push_back({t[0], t[1], t[2], static_cast<std::int64_t>(t[3]), static_cast<std::int64_t>(t[4])});
  return times;
}

}  // namespace

double BenchStepResult::gemm_seconds() const {
  const auto found = zones.find("matmul");
  return found == zones.end() ? 0 : found->second.seconds;
}

std::int64_t process_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

std::int64_t BenchStepResult::peak_bytes_all_ranks() const {
  std::int64_t sum = ranks.empty() ? peak_bytes : 0;
  for (const RankTimes& rank : ranks) sum += rank.peak_bytes;
  return sum;
}

BenchStepResult bench_step(const BenchStepOptions& o, World& world) {
  require(o.batch >= 1 && o.seq >= 1 && o.steps >= 1,
          "bench step: batch, seq and steps must be at least 1, got ", o.batch, ", ", o.seq, ", ", o.steps);
  constexpr std::int64_t most_tokens = std::int64_t{1} << 31;
  require(o.batch <= most_tokens / o.seq, "bench step: want at most ", most_tokens,
          " tokens in a batch, got ", o.batch, " x ", o.seq);
  require(o.microbatches >= 1, "bench step: microbatches must be at least 1, got ", o.microbatches);
  const auto start = std::chrono::steady_clock::now();
  const RunRanks ranks(world, o.distributed, o.settings, o.device);
  const std::int64_t parts = ranks.dp_size() * o.microbatches;
  require(o.batch >= parts, "bench step: want a sequence for each of ", parts, " microbatches (of ",
          ranks.dp_size(), " replicas), batch is ", o.batch);
  const OpenedModel source(o.config);
  const LoadedModel made =
      make_model(source, o.dtype, 1234, ranks.place_for(setup_of(source, ModelChoices{})));
  made.parallel->data().spread_values();
  Stack& model = *made.model;
  model.activation_checkpointing = o.activation_checkpointing;
  Optimizer optimizer(model.parameters(), {});
  std::vector<TokenBatch> batches;
  for (std::int64_t m = 0; m < o.microbatches; ++m)
    batches.push_back(
        random_batch(o, model.config().vocab_size, ranks.dp_rank() * o.microbatches + m, parts));
  std::optional<StepReplay> replay;
  if (o.cuda_graphs) {
    replay.emplace(*made.parallel);
    for (TokenBatch& batch : batches) batch = capacity_of(o, parts).fit(batch);
  }
  StepOptions step;
  step.lr = 1e-4;
  step.weight_decay = 0.01;
  step.replay = replay ? &*replay : nullptr;

  BenchStepResult result;
  CommStats before;
  std::int64_t launches_before = 0, in_graphs_before = 0;
  result.start_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // Events that take the time of zones would be in a timeline, too; the ranges of NVTX are there in any case.
  const bool timeline = o.device.is_cuda() && timeline_is_recorded();
  if (o.device.is_cuda()) cuda::time_zones(!timeline);
  for (std::int64_t i = 0; i < o.steps; ++i) {
    if (i <= 1) {  // the first step is cold, so its zones do not count when there are others
      reset_zones();
      reset_host_waits();
      before = ranks.total_stats(*made.groups);
      if (o.device.is_cuda()) launches_before = cuda::launches();
      if (replay) in_graphs_before = replay->graphs().launches_in_graphs();
    }
    StepResult r;
    const auto run_step = [&] { r = train_step(*made.parallel, optimizer, batches, step); };
    result.step_seconds.push_back(seconds_of(
        [&] { timeline&& i == o.steps - 1 ? record_timeline(world.communicator(), run_step) : run_step(); }));
    if (i == 0) result.loss_first = r.loss;
    result.loss_last = r.loss;
    if (o.on_step) o.on_step(i, result.step_seconds.back());
  }
  const auto& all = result.step_seconds;
  const std::vector<double> warm(all.begin() + (all.size() > 1 ? 1 : 0), all.end());
  result.zones = zone_totals();
  result.host_waits = host_waits();
  result.warm_steps = static_cast<std::int64_t>(warm.size());
  if (o.device.is_cuda()) result.launches = (cuda::launches() - launches_before) / result.warm_steps;
  if (replay)
    result.launches_in_graphs =
        (replay->graphs().launches_in_graphs() - in_graphs_before) / result.warm_steps;
  for (auto& [name, zone] : result.zones) {
    zone.seconds /= static_cast<double>(warm.size());
    zone.calls /= static_cast<std::int64_t>(warm.size());
  }
  const auto tokens = static_cast<double>(o.batch * o.seq);
  result.median_seconds = median(warm);
  result.tokens_per_second = tokens / result.median_seconds;
  result.peak_bytes = process_peak_bytes();
  result.tensor_peak_bytes = allocator(model.device()).stats().peak_bytes;
  result.flops = 3 * tokens * forward_flops_per_token(model.setup(), static_cast<double>(o.seq)).total();
  if (timeline && world.rank() == 0)
    result.timeline =
        read_step_timeline(made.parallel->plan().pipeline, made.parallel->plan().grid.pp, o.microbatches);
  result.ranks = times_of_ranks(ranks, made, result, before, static_cast<double>(warm.size()));
  return result;
}

}  // namespace nemocube
