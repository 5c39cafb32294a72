#include "train/bench/bench_step.h"

#include <chrono>
#include <fstream>
#include <string>

#include "core/allocator.h"
#include "core/rng.h"
#include "model/flops.h"
#include "train/bench/timing.h"
#include "train/model_io/model_io.h"
#include "train/step/train_step.h"

namespace nemocube {
namespace {

TokenBatch random_batch(const BenchStepOptions& o, std::int64_t vocab) {
  const std::int64_t tokens = o.batch * o.seq;
  TokenBatch batch;
  batch.ids = Tensor::empty({tokens}, DType::i64);
  batch.labels = Tensor::empty({tokens}, DType::i64);
  batch.sequences = Sequences::uniform(o.batch, o.seq);
  const RandomStream stream(1234, "bench/tokens");
  for (std::int64_t t = 0; t < tokens; ++t)
    batch.ids.data<std::int64_t>()[t] = static_cast<std::int64_t>(
        stream.below(static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(vocab)));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const bool last = t % o.seq == o.seq - 1;
    batch.labels.data<std::int64_t>()[t] = last ? -100 : batch.ids.data<std::int64_t>()[t + 1];
  }
  return batch;
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

BenchStepResult bench_step(const BenchStepOptions& o) {
  require(o.batch >= 1 && o.seq >= 1 && o.steps >= 1,
          "bench step: batch, seq and steps must be at least 1, got ", o.batch, ", ", o.seq, ", ", o.steps);
  constexpr std::int64_t most_tokens = std::int64_t{1} << 31;
  require(o.batch <= most_tokens / o.seq, "bench step: want at most ", most_tokens,
          " tokens in a batch, got ", o.batch, " x ", o.seq);
  const auto start = std::chrono::steady_clock::now();
  LoadedModel made = make_model(o.config, o.dtype, 1234);
  NemotronH& model = *made.model;
  model.activation_checkpointing = o.activation_checkpointing;
  Optimizer optimizer(model.parameters(), {});
  const TokenBatch batch = random_batch(o, model.config().vocab_size);
  StepOptions step;
  step.lr = 1e-4;
  step.weight_decay = 0.01;

  BenchStepResult result;
  result.start_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (std::int64_t i = 0; i < o.steps; ++i) {
    if (i <= 1) reset_zones();  // the first step is cold, so its zones do not count when there are others
    StepResult r;
    result.step_seconds.push_back(seconds_of([&] { r = train_step(model, optimizer, {&batch, 1}, step); }));
    if (i == 0) result.loss_first = r.loss;
    result.loss_last = r.loss;
    if (o.on_step) o.on_step(i, result.step_seconds.back());
  }
  const auto& all = result.step_seconds;
  const std::vector<double> warm(all.begin() + (all.size() > 1 ? 1 : 0), all.end());
  result.zones = zone_totals();
  for (auto& [name, zone] : result.zones) {
    zone.seconds /= static_cast<double>(warm.size());
    zone.calls /= static_cast<std::int64_t>(warm.size());
  }
  const auto tokens = static_cast<double>(o.batch * o.seq);
  result.median_seconds = median(warm);
  result.tokens_per_second = tokens / result.median_seconds;
  result.peak_bytes = process_peak_bytes();
  result.tensor_peak_bytes = cpu_memory().peak_bytes;
  result.flops = 3 * tokens * forward_flops_per_token(model.config(), static_cast<double>(o.seq)).total();
  return result;
}

}  // namespace nemocube
