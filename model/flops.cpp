#include "model/flops.h"

#include <algorithm>

#include "model/block_passes.h"
#include "model/blocks/block_type.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"

namespace nemocube {
namespace {

class ForwardCount final : public BlockWork {
 public:
  double flops = 0;
  void product(Part, double rows, double in, double out, double) override { flops += 2 * rows * in * out; }
  void operations(Part, double forward, double) override { flops += forward; }
  void numbers(double, double) override {}
};

}  // namespace

double forward_flops_per_token(BlockKind kind, const BlockConfig& config, double sequence_length) {
  ForwardCount count;
  kind->add_work(count, config, {.tokens = 1, .all = 1, .routed = 1, .stream = 1, .length = sequence_length},
                 {});
  return count.flops;
}

namespace {

double head_flops(const ModelConfig& config) {
  return 2 * real(config.hidden_size) * real(config.vocab_size);
}
double join_flops(const ModelConfig& config) {
  return 4 * real(config.hidden_size) * real(config.hidden_size);
}
/// Of per_layer_model_projection.
double per_layer_flops(const ModelConfig& config) {
  return 2 * real(config.hidden_size) * real(config.count(per_layer_input_block)) *
         real(config.per_layer_input.size);
}
/// Of one depth of multi-token prediction, without the head.
double mtp_depth_flops(const ModelConfig& config, double sequence_length) {
  double flops = join_flops(config);
  for (const BlockKind kind : config.mtp_blocks)
    flops += forward_flops_per_token(kind, config.common(), sequence_length);
  return flops;
}

}  // namespace

namespace {

/// Of the products with a weight, per token.
double product_flops(const TensorSpec& spec, const ModelConfig& config) {
  if (spec.shape.ndim() < 2 || spec.buffer) return 0;
  const double all = 2 * static_cast<double>(spec.shape.numel());
  return spec.experts ? all * real(config.of_tensor(spec.id).moe.num_experts_per_tok) / real(spec.shape[0])
                      : all;
}

/// What frozen weights save in multi-token prediction.
double saved_by_frozen_mtp(const std::vector<DepthPasses>& depths, const ModelSetup& setup,
                           double sequence_length) {
  const ModelConfig& config = setup.config;
  double saved = 0;
  const std::size_t blocks = config.mtp_blocks.size();
  for (const DepthPasses& depth : depths) {
    const BlockPass& join = depth.join;
    saved += join_flops(config) * (!join.backward ? 2 : !join.input_gradient ? 1 : 0);
    for (std::size_t i = 0; i < blocks; ++i)
      if (!depth.blocks[i].backward)
        saved += 2 * forward_flops_per_token(config.mtp_blocks[i], config.common(), sequence_length);
  }
  for (const TensorSpec& spec : tensor_specs(setup)) {
    if (!spec.id.in_depth()) continue;
    const auto block = static_cast<std::size_t>(spec.id.block);
    const bool of_join = spec.module.member == mtp_join, adapter = spec.factor != LoraFactor::none;
    const double product = product_flops(spec, config);
    for (std::size_t k = 0; k < depths.size(); ++k) {
      if (!setup.choices.mtp.repeated && block / blocks != k) continue;  // all depths, where one is repeated
      const BlockPass& pass = of_join ? depths[k].join : depths[k].blocks[block % blocks];
      if (!pass.backward)
        saved += adapter ? 2 * product : 0;
      else if (spec.frozen)
        saved += product;
      if (of_join && pass.backward && !pass.input_gradient && spec.factor == LoraFactor::a) saved += product;
    }
  }
  return saved;
}

}  // namespace

ForwardFlops forward_flops_per_token(const ModelSetup& setup, double sequence_length) {
  const ModelConfig& config = setup.config;
  ForwardFlops f;
  for (const BlockVariant& v : setup.variants())
    f.blocks += real(v.count) * forward_flops_per_token(v.kind, *v.config, sequence_length);
  const double depths = real(setup.choices.mtp.depths);
  f.blocks += depths * mtp_depth_flops(config, sequence_length);
  f.blocks += per_layer_flops(config);
  f.head = (1 + depths) * head_flops(config);
  if (setup.choices.lora.modules.empty()) return f;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    if (spec.factor == LoraFactor::none) continue;
    const bool of_head = spec.module == config.head_module(),
               repeats = setup.choices.mtp.repeated && spec.id.in_depth();
    (of_head ? f.head : f.blocks) += (of_head   ? 1 + depths
                                      : repeats ? depths
                                                : 1) *
                                     product_flops(spec, config);
  }
  return f;
}

ForwardFlops training_flops_per_token(const ModelSetup& setup, double sequence_length) {
  const ModelConfig& config = setup.config;
  const ForwardFlops forward = forward_flops_per_token(setup, sequence_length);
  ForwardFlops all{3 * forward.blocks, 3 * forward.head};
  if (setup.choices.frozen.empty()) return all;
  const std::vector<BlockPass> passes = block_passes(setup, ModelChunk{});
  const auto has_backward = [&](std::int64_t block) {
    return passes[static_cast<std::size_t>(block)].backward;
  };
  for (std::size_t i = 0; i < config.blocks.size(); ++i)
    if (!passes[i].backward)
      all.blocks -= 2 * forward_flops_per_token(config.blocks[i], config.block(static_cast<std::int64_t>(i)),
                                                sequence_length);
  const std::vector<DepthPasses> depths = mtp_passes(setup, ModelChunk{});
  const double heads = 1 + real(setup.choices.mtp.depths),
               without_backward =
                   real(!passes.back().backward + std::ranges::count_if(depths, [](const DepthPasses&d) {
                     return !d.blocks.back().backward;
                   }));
  for (const TensorSpec& spec : tensor_specs(setup)) {
    const double product = product_flops(spec, config);
    const bool of_head = spec.module == config.head_module(), adapter = spec.factor != LoraFactor::none;
    if (const auto block = spec.id.block_of_model(); block && !has_backward(*block))
      all.blocks -= adapter ? 2 * product : 0;
    else if (spec.frozen && block)
      all.blocks -= product;
    if (spec.module == per_layer_model_projection_name() && !adapter)
      all.blocks -= (spec.frozen + setup.choices.frozen.contains(embeddings_name() / "weight")) * product;
    if (spec.frozen && of_head) all.head -= heads * product;
    // No gradient of what enters the head, which B does not read.
    if (of_head && spec.factor != LoraFactor::b) all.head -= without_backward * product;
  }
  all.blocks -= saved_by_frozen_mtp(depths, setup, sequence_length);
  return all;
}

}  // namespace nemocube
