#include "model/flops.h"

#include <algorithm>
#include <string>

#include "model/block_passes.h"
#include "model/blocks/block_type.h"

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
  kind->add_work(count, config, {.tokens = 1, .all = 1, .routed = 1, .length = sequence_length}, {});
  return count.flops;
}

namespace {

double head_flops(const NemotronHConfig& config) {
  return 2 * real(config.hidden_size) * real(config.vocab_size);
}
double join_flops(const NemotronHConfig& config) {
  return 4 * real(config.hidden_size) * real(config.hidden_size);
}
/// Of one depth of multi-token prediction, without the head.
double mtp_depth_flops(const NemotronHConfig& config, double sequence_length) {
  double flops = join_flops(config);
  for (const BlockKind kind : config.mtp_blocks)
    flops += forward_flops_per_token(kind, config.common(), sequence_length);
  return flops;
}

}  // namespace

namespace {

/// Of the products with a weight, per token.
double product_flops(const TensorSpec& spec, const NemotronHConfig& config) {
  if (spec.shape.ndim() < 2 || spec.buffer) return 0;
  const double all = 2 * static_cast<double>(spec.shape.numel());
  return spec.experts ? all * real(config.of_tensor(spec.name).num_experts_per_tok) / real(spec.shape[0])
                      : all;
}

/// What frozen weights save in multi-token prediction.
double saved_by_frozen_mtp(const std::vector<DepthPasses>& depths, const NemotronHConfig& config,
                           double sequence_length) {
  double saved = 0;
  const std::size_t blocks = config.mtp_blocks.size();
  for (const DepthPasses& depth : depths) {
    const BlockPass& join = depth.join;
    saved += join_flops(config) * (!join.backward ? 2 : !join.input_gradient ? 1 : 0);
    for (std::size_t i = 0; i < blocks; ++i)
      if (!depth.blocks[i].backward)
        saved += 2 * forward_flops_per_token(config.mtp_blocks[i], config.common(), sequence_length);
  }
  constexpr std::string_view layers = "mtp.layers.";
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (!spec.name.starts_with(layers)) continue;
    const std::size_t layer = std::stoul(spec.name.substr(layers.size()));
    const bool of_join = spec.module.ends_with(".eh_proj"), adapter = spec.factor != LoraFactor::none;
    const double product = product_flops(spec, config);
    for (std::size_t k = 0; k < depths.size(); ++k) {
      if (!config.mtp.repeated && layer / blocks != k) continue;  // all depths, where one is repeated
      const BlockPass& pass = of_join ? depths[k].join : depths[k].blocks[layer % blocks];
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

ForwardFlops forward_flops_per_token(const NemotronHConfig& config, double sequence_length) {
  ForwardFlops f;
  for (const BlockVariant& v : config.variants())
    f.blocks += real(v.count) * forward_flops_per_token(v.kind, *v.config, sequence_length);
  const double depths = real(config.mtp.depths);
  f.blocks += depths * mtp_depth_flops(config, sequence_length);
  f.head = (1 + depths) * head_flops(config);
  if (config.lora.modules.empty()) return f;
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (spec.factor == LoraFactor::none) continue;
    const bool of_head = spec.module == "lm_head",
               repeats = config.mtp.repeated && spec.name.starts_with("mtp.");
    (of_head ? f.head : f.blocks) += (of_head   ? 1 + depths
                                      : repeats ? depths
                                                : 1) *
                                     product_flops(spec, config);
  }
  return f;
}

ForwardFlops training_flops_per_token(const NemotronHConfig& config, double sequence_length) {
  const ForwardFlops forward = forward_flops_per_token(config, sequence_length);
  ForwardFlops all{3 * forward.blocks, 3 * forward.head};
  if (config.frozen.empty()) return all;
  const std::vector<BlockPass> passes = block_passes(config, ModelChunk{});
  const auto has_backward = [&](std::int64_t block) {
    return passes[static_cast<std::size_t>(block)].backward;
  };
  for (std::size_t i = 0; i < config.blocks.size(); ++i)
    if (!passes[i].backward)
      all.blocks -= 2 * forward_flops_per_token(config.blocks[i], config.block(static_cast<std::int64_t>(i)),
                                                sequence_length);
  const std::vector<DepthPasses> depths = mtp_passes(config, ModelChunk{});
  const double heads = 1 + real(config.mtp.depths),
               without_backward =
                   real(!passes.back().backward + std::ranges::count_if(depths, [](const DepthPasses&d) {
                     return !d.blocks.back().backward;
                   }));
  for (const TensorSpec& spec : tensor_specs(config)) {
    const double product = product_flops(spec, config);
    const bool of_head = spec.module == "lm_head", adapter = spec.factor != LoraFactor::none;
    if (const auto block = block_of(spec.name); block && !has_backward(*block))
      all.blocks -= adapter ? 2 * product : 0;
    else if (spec.frozen && block)
      all.blocks -= product;
    if (spec.frozen && of_head) all.head -= heads * product;
    // No gradient of what enters the head, which B does not read.
    if (of_head && spec.factor != LoraFactor::b) all.head -= without_backward * product;
  }
  all.blocks -= saved_by_frozen_mtp(depths, config, sequence_length);
  return all;
}

double automodel_step_flops(const NemotronHConfig& config, std::int64_t sequences,
                            std::int64_t sequence_length) {
  double per_token = 6 * real(config.hidden_size) * real(config.vocab_size);
  for (std::int64_t i = 0; i < config.num_layers(); ++i)
    per_token +=
        config.blocks[static_cast<std::size_t>(i)]->automodel_flops(config.block(i), real(sequence_length));
  double of_depth = 12 * real(config.hidden_size) * real(config.hidden_size) +
                    6 * real(config.hidden_size) * real(config.vocab_size);
  for (const BlockKind kind : config.mtp_blocks)
    if (config.mtp.depths > 0) of_depth += kind->automodel_flops(config.common(), real(sequence_length));
  per_token += real(config.mtp.depths) * of_depth;
  return real(sequences) * real(sequence_length) * per_token;
}

}  // namespace nemocube
