#include "train/bench/bench_step.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "core/allocator.h"
#include "core/profile.h"
#include "core/rng.h"
#include "model/flops.h"
#include "train/model_io/model_io.h"
#include "train/step/train_step.h"

namespace nemocube {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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

double median(std::vector<double> values) {
  expect(!values.empty(), "median of nothing");
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
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
  const auto start = Clock::now();
  LoadedModel made = make_model(o.config, o.dtype, 1234);
  NemotronH& model = *made.model;
  model.activation_checkpointing = o.activation_checkpointing;
  Optimizer optimizer(model.parameters(), {});
  const TokenBatch batch = random_batch(o, model.config().vocab_size);
  StepOptions step;
  step.lr = 1e-4;
  step.weight_decay = 0.01;

  BenchStepResult result;
  result.start_seconds = seconds_since(start);
  for (std::int64_t i = 0; i < o.steps; ++i) {
    if (i == 1) reset_zones();
    const auto begin = Clock::now();
    const StepResult r = train_step(model, optimizer, {&batch, 1}, step);
    result.step_seconds.push_back(seconds_since(begin));
    if (i == 0) result.loss_first = r.loss;
    result.loss_last = r.loss;
  }
  const auto& all = result.step_seconds;
  const std::vector<double> warm(all.begin() + (all.size() > 1 ? 1 : 0), all.end());
  const auto tokens = static_cast<double>(o.batch * o.seq);
  result.tokens_per_second = tokens / median(warm);
  result.peak_bytes = process_peak_bytes();
  result.tensor_peak_bytes = cpu_memory().peak_bytes;
  result.gemm_seconds = zone_totals()["matmul"].seconds / static_cast<double>(warm.size());
  result.flops = 3 * tokens * forward_flops_per_token(model.config(), static_cast<double>(o.seq)).total();
  return result;
}

}  // namespace nemocube
