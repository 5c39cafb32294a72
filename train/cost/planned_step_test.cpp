#include "train/cost/planned_step.h"

#include <doctest/doctest.h>

#include "core/allocator.h"
#include "model/test_models.h"
#include "ops/matmul/matmul.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelConfig config_of(const char* pattern) {
  ModelConfig c = tiny_config(pattern);
  c.vocab_size = 300;
  c.hidden_size = 64;
  c.mamba.chunk_size = 64;  // the software GPU takes about as long for a chunk of any length
  return c;
}

/// The same steps on a device.
std::int64_t measured_peak_bytes(const ModelSetup& config, const PlannedSteps& steps, Device device) {
  Allocator& memory = allocator(device);
  const std::int64_t before = memory.stats().current_bytes;
  memory.reset_peak();
  Stack model(config, steps.dtype, device);
  initialise(model, 1);
  model.activation_checkpointing = steps.activation_checkpointing;
  ParallelModel parallel(model);
  Optimizer optimizer(model.parameters(), steps.optimizer);
  const Tensor tokens = Tensor::zeros({steps.microbatch.tokens()}, DType::i64, Device::cpu);
  const std::vector<TokenBatch> batches(static_cast<std::size_t>(steps.microbatches),
                                        TokenBatch{tokens, tokens, steps.microbatch});
  for (int step = 0; step < 2; ++step) train_step(parallel, optimizer, batches, steps.options);
  return memory.stats().peak_bytes - before;
}

}  // namespace

TEST_CASE("planned_step: the memory of a step grows with its rows, and checkpointing lowers it") {
  const ModelConfig config = config_of("ME*-M");
  PlannedSteps steps{.microbatch = Sequences::uniform(2, 64)};
  const std::int64_t few = planned_peak_bytes(config, steps);
  steps.microbatch = Sequences::uniform(2, 640);
  const std::int64_t many = planned_peak_bytes(config, steps);
  CHECK(few > 0);
  CHECK(many > 2 * few);
  CHECK(planned_peak_bytes(with_mtp(config, 1, false), steps) > 1.1 * static_cast<double>(many));
  steps.activation_checkpointing = true;
  CHECK(planned_peak_bytes(config, steps) < many);
  steps = {};  // its sequences keep tables
  CHECK(allocator(Device::planned).stats().current_bytes == 0);
}

TEST_CASE("planned_step: within 5 % of what the same steps hold on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const auto& [dtype, checkpointing, depths] :
       {std::tuple{DType::f32, false, 0}, {DType::bf16, true, 0}, {DType::f32, false, 2}}) {
    CAPTURE(dtype);
    CAPTURE(checkpointing);
    CAPTURE(depths);
    const ModelSetup config = with_mtp(config_of("ME*-M"), depths, false);
    PlannedSteps steps{.dtype = dtype,
                       .microbatch = Sequences::of_lengths(std::vector<std::int64_t>{70, 40, 18}),
                       .microbatches = 2,
                       .activation_checkpointing = checkpointing};
    const auto planned = static_cast<double>(planned_peak_bytes(config, steps)),
               measured = static_cast<double>(measured_peak_bytes(config, steps, Device::cuda)),
               workspace = static_cast<double>(cuda::largest_product_workspace());
    CAPTURE(planned);
    CAPTURE(measured);
    CAPTURE(workspace);
    CHECK(planned + workspace > 0.95 * measured);
    CHECK(planned < 1.05 * measured);
  }
}
