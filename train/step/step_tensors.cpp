#include "train/step/step_tensors.h"

#include <algorithm>
#include <iterator>

#include "core/host_wait.h"
#include "model/blocks/block_type.h"

namespace nemocube {
namespace {

constexpr std::int64_t kinds = std::ssize(router_losses), decision_size = 3;
std::int64_t sums_size(std::int64_t layers, std::int64_t depths) { return 1 + (layers + 1) * kinds + depths; }

}  // namespace

StepTensors::StepTensors(const Tensor& whole, std::int64_t layers, std::int64_t experts, std::int64_t depths)
    : all(whole), depths_(depths) {
  std::int64_t at = 0;
  const auto next = [&](std::int64_t elements) {
    at += elements;
    return all.narrow(0, at - elements, elements);
  };
  sums = next(sums_size(layers, depths));
  counts = next(layers * experts).bits_as(DType::i64).reshape({layers, experts});
  decision = next(decision_size);
  finite = next(all.numel() - at);
}

StepTensors::StepTensors(const Stack& model) { *this = start_of(model).to(model.device()); }

void StepTensors::reset(const Stack& model) { all.copy_from(start_of(model).all); }

StepTensors StepTensors::to(Device device) const {
  return {all.to(device), counts.dim(0), counts.dim(1), depths_};
}

StepTensors StepTensors::start_of(const Stack& model) {
  const std::int64_t layers = model.setup().expert_layers(), experts = model.setup().most_experts(),
                     depths = model.choices().mtp.depths;
  const auto parameters = std::ssize(tensor_specs(model.setup()));
  const std::int64_t size = sums_size(layers, depths) + layers * experts + decision_size + parameters;
  const Tensor start = Tensor::zeros({size}, DType::f64, Device::cpu);  // the host makes the first values
  const StepTensors values(start, layers, experts, depths);
  auto* numbers = values.sums.data<double>() + 1 + layers * kinds;
  for (MoeMixer* moe : model.moe_layers())
    for (std::int64_t kind = 0; kind < kinds; ++kind)
      numbers[kind] += moe->router().*router_losses[static_cast<std::size_t>(kind)].coef != 0;
  values.finite.fill(1);
  return values;
}

StepTensors StepTensors::fetch() const {
  const HostWaitName name("step result");
  return to(Device::cpu);  // the host reads
}

Tensor StepTensors::losses_of(std::int64_t first, std::int64_t layers) const {
  return sums.narrow(0, 1 + first * kinds, layers * kinds).reshape({layers, kinds});
}

std::vector<std::int64_t> moe_layer_numbers(const Stack& model, std::size_t chunk) {
  const ModelChunk& own = model.part().chunks.at(chunk);
  std::vector<std::int64_t> numbers;
  std::int64_t block = 0, number = 0;
  for (const BlockKind kind : model.config().blocks) {
    if (kind->cores(model.config().block(block)).experts) {
      if (own.has_block(block)) numbers.push_back(number);
      ++number;
    }
    ++block;
  }
  for (; own.head && number < model.setup().expert_layers(); ++number) numbers.push_back(number);
  return numbers;
}

std::vector<std::int64_t> moe_layer_numbers(const Stack& model) {
  std::vector<std::int64_t> all;
  for (std::size_t chunk = 0; chunk < model.part().chunks.size(); ++chunk)
    std::ranges::copy(moe_layer_numbers(model, chunk), std::back_inserter(all));
  return all;
}

std::int64_t moe_layers_of_depth(const ModelConfig& config) {
  return std::ranges::count_if(
      config.mtp_blocks, [&](BlockKind kind) { return kind->cores(config.common()).experts.has_value(); });
}

}  // namespace nemocube
