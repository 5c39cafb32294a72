#include <doctest/doctest.h>

#include "core/host_wait.h"
#include "model/test_models.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// The loss and the gradients of one microbatch, for a model with the weights of `whole`.
std::vector<Tensor> step_on(Device device, Stack& whole, const TestBatch& batch, bool checkpointing) {
  Stack model(whole.setup(), whole.dtype(), device);
  copy_weights(model, whole);
  model.activation_checkpointing = checkpointing;
  const Tensor ids = batch.ids.to(device);
  const Labels labels = Labels(batch.labels).to(device);
  const Tensor one = Tensor::scalar(1, accumulate_dtype(whole.dtype()), device);
  reset_host_waits();
  Tape tape;
  Context ctx{.tape = &tape};
  const Var loss = model.loss(ctx, model.hidden(ctx, ids, batch.sequences), labels, batch.sequences, 0.25);
  tape.backward(loss, one);
  CHECK(host_waits().empty());
  std::vector<Tensor> results = gradients(model);
  results.push_back(loss.value());
  return results;
}

/// Gradients of small models lose three digits by cancelling (tests/goldens allow as much on the CPU).
double most_error(DType dtype) { return dtype == DType::f32 ? 200 * 0x1p-24 : 40 * 0x1p-9; }

/// Results of step_on() on a device, against those of the CPU.
void check_results(const std::vector<Tensor>& got, const std::vector<Tensor>& want, Device device,
                   DType dtype) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    REQUIRE(got[i].defined() == want[i].defined());
    if (!want[i].defined()) continue;
    if (device.is_cuda())
      CHECK(relative_error(got[i], want[i]) <= most_error(dtype));
    else
      CHECK_BITS(got[i], want[i]);
  }
}

/// All that is adapted has dropout.
ModelSetup adapted_config(DropoutPosition position) {
  ModelSetup config = frozen_base(with_adapters(tiny_config_with_all_tensors()));
  config.choices.lora.dropout = 0.25;
  config.choices.lora.dropout_position = position;
  return config;
}

TestBatch numbered_batch(const ModelSetup& config) {
  TestBatch batch = random_batch(config, {9, 0, 14, 3}, 72);
  batch.sequences = batch.sequences.numbered({5, 1000, std::int64_t{1} << 33, std::int64_t{3} << 32});
  return batch;
}

}  // namespace

TEST_CASE("model: a microbatch on Device::guard has the bits of the CPU, and the host waits for nothing") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const bool checkpointing : {false, true}) {
      CAPTURE(dtype);
      CAPTURE(checkpointing);
      Stack whole(tiny_config("ME*-M"), dtype, Device::cpu);
      randomise(whole, 71);
      const TestBatch batch = random_batch(whole.config(), {9, 0, 14, 3}, 72);
      const auto got = step_on(Device::guard, whole, batch, checkpointing),
                 want = step_on(Device::cpu, whole, batch, checkpointing);
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        REQUIRE(got[i].defined() == want[i].defined());
        if (want[i].defined()) CHECK_BITS(got[i], want[i]);
      }
    }
}

TEST_CASE("model: what Llama and its relatives have, on every device" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (device == Device::cpu) continue;
      CAPTURE(device);
      CAPTURE(dtype);
      for (const ModelConfig& config :
           {tiny_llama_config(), tiny_windowed_config(NormKind::rmsnorm), tiny_gemma_config(),
            tiny_phi_config(), tiny_baichuan_config(), tiny_falcon_config(MambaNorm::none, false),
            tiny_falcon_config(MambaNorm::before_gate, true), tiny_gated_experts_config(),
            tiny_delta_net_config(), tiny_gemma4_config()}) {
        Stack whole(config, dtype, Device::cpu);
        randomise(whole, 71);
        const TestBatch batch = random_batch(whole.config(), {9, 0, 14, 3}, 72);
        const auto got = step_on(device, whole, batch, false),
                   want = step_on(Device::cpu, whole, batch, false);
        check_results(got, want, device, dtype);
      }
    }
}

TEST_CASE("model: a microbatch on cuda has the CPU's loss and gradients, and the host waits for nothing" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool checkpointing : {false, true}) {
      CAPTURE(dtype);
      CAPTURE(checkpointing);
      Stack whole(tiny_config("ME*-M"), dtype, Device::cpu);
      randomise(whole, 71);
      const TestBatch batch = random_batch(whole.config(), {9, 0, 14, 3}, 72);
      const auto got = step_on(Device::cuda, whole, batch, checkpointing),
                 want = step_on(Device::cpu, whole, batch, checkpointing),
                 again = step_on(Device::cuda, whole, batch, checkpointing);
      check_results(got, want, Device::cuda, dtype);
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        if (want[i].defined()) CHECK_BITS(got[i], again[i]);
      }
    }
}

TEST_CASE("model: adapters and their dropout on every device" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const DropoutPosition position : {DropoutPosition::pre, DropoutPosition::post})
        for (const bool checkpointing : {false, true}) {
          if (device == Device::cpu) continue;
          CAPTURE(device);
          CAPTURE(dtype);
          CAPTURE(checkpointing);
          Stack whole(adapted_config(position), dtype, Device::cpu);
          randomise(whole, 71);
          const TestBatch batch = numbered_batch(whole.config());
          const auto got = step_on(device, whole, batch, checkpointing),
                     want = step_on(Device::cpu, whole, batch, checkpointing);
          check_results(got, want, device, dtype);
        }
}
