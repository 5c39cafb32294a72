#include "model/flops.h"

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

double forward_flops_per_token(BlockKind kind, const NemotronHConfig& config, double sequence_length) {
  ForwardCount count;
  kind->add_work(count, config, {.tokens = 1, .all = 1, .routed = 1, .length = sequence_length}, {});
  return count.flops;
}

ForwardFlops forward_flops_per_token(const NemotronHConfig& config, double sequence_length) {
  ForwardFlops f;
  for (const BlockKind kind : config.kinds())
    f.blocks += real(config.count(kind)) * forward_flops_per_token(kind, config, sequence_length);
  f.head = 2 * real(config.hidden_size) * real(config.vocab_size);
  return f;
}

namespace {

/// Of the gradient of a weight, per token.
double gradient_flops(const TensorSpec& spec, const NemotronHConfig& config) {
  if (spec.shape.ndim() < 2 || spec.buffer) return 0;
  const double all = 2 * static_cast<double>(spec.shape.numel());
  return spec.experts
             ? all * static_cast<double>(config.num_experts_per_tok) / static_cast<double>(spec.shape[0])
             : all;
}

}  // namespace

ForwardFlops training_flops_per_token(const NemotronHConfig& config, double sequence_length) {
  const ForwardFlops forward = forward_flops_per_token(config, sequence_length);
  ForwardFlops all{3 * forward.blocks, 3 * forward.head};
  if (config.frozen.empty()) return all;
  const std::vector<BlockPass> passes = block_passes(config, ModelChunk{});
  for (std::size_t i = 0; i < config.blocks.size(); ++i)
    if (!passes[i].backward)
      all.blocks -= 2 * forward_flops_per_token(config.blocks[i], config, sequence_length);
  for (const TensorSpec& spec : tensor_specs(config)) {
    const auto block = block_of(spec.name);
    if (spec.frozen && block && passes[static_cast<std::size_t>(*block)].backward)
      all.blocks -= gradient_flops(spec, config);
    if (spec.frozen && spec.name == "lm_head.weight") all.head -= gradient_flops(spec, config);
  }
  if (!passes.back().backward) all.head -= forward.head;  // no gradient of its input
  return all;
}

double automodel_step_flops(const NemotronHConfig& config, std::int64_t sequences,
                            std::int64_t sequence_length) {
  double per_token = 6 * real(config.hidden_size) * real(config.vocab_size);
  for (const BlockKind kind : config.blocks)
    per_token += kind->automodel_flops(config, real(sequence_length));
  return real(sequences) * real(sequence_length) * per_token;
}

}  // namespace nemocube
