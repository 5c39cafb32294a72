#include "train/step/step_tensors.h"

#include <algorithm>
#include <iterator>

namespace nemocube {

StepTensors::StepTensors(const NemotronH& model) {
  const std::int64_t layers = model.config().count(BlockKind::moe);
  constexpr std::int64_t kinds = std::ssize(router_losses);
  std::vector<double> start(static_cast<std::size_t>(1 + (layers + 1) * kinds));
  for (MoeMixer* moe : model.moe_layers())
    for (std::int64_t kind = 0; kind < kinds; ++kind)
      start[static_cast<std::size_t>(1 + layers * kinds + kind)] +=
          moe->router().*router_losses[static_cast<std::size_t>(kind)].coef != 0;
  sums = Tensor::empty({std::ssize(start)}, DType::f64, model.device());
  sums.copy_from(Tensor::from(start, {std::ssize(start)}));
  counts = Tensor::zeros({layers, model.config().n_routed_experts}, DType::i64, model.device());
  finite = Tensor::empty({std::ssize(model.parameters().all())}, DType::f64, model.device());
  finite.fill(1);
}

Tensor StepTensors::losses_of(std::int64_t moe_layer) const {
  constexpr std::int64_t kinds = std::ssize(router_losses);
  return sums.narrow(0, 1 + moe_layer * kinds, kinds);
}

std::vector<std::int64_t> moe_layer_numbers(const NemotronH& model, std::size_t chunk) {
  const ModelChunk& own = model.part().chunks.at(chunk);
  std::vector<std::int64_t> numbers;
  std::int64_t block = 0, number = 0;
  for (const BlockKind kind : model.config().blocks) {
    if (kind == BlockKind::moe) {
      if (own.has_block(block)) numbers.push_back(number);
      ++number;
    }
    ++block;
  }
  return numbers;
}

std::vector<std::int64_t> moe_layer_numbers(const NemotronH& model) {
  std::vector<std::int64_t> all;
  for (std::size_t chunk = 0; chunk < model.part().chunks.size(); ++chunk)
    std::ranges::copy(moe_layer_numbers(model, chunk), std::back_inserter(all));
  return all;
}

Tensor finite_of_whole(const NemotronH& model, const Tensor& finite) {
  const std::vector<TensorSpec> specs = tensor_specs(model.config());
  const Tensor all = Tensor::empty({std::ssize(specs)}, finite.dtype(), finite.device());
  all.fill(1);
  const auto& own = model.parameters().all();  // in the same order
  auto spec = specs.begin();
  for (std::size_t i = 0; i < own.size(); ++i) {
    spec = std::find_if(spec, specs.end(), [&](const TensorSpec& s) { return s.name == own[i].name; });
    all.narrow(0, spec - specs.begin(), 1).copy_from(finite.narrow(0, static_cast<std::int64_t>(i), 1));
  }
  return all;
}

}  // namespace nemocube
