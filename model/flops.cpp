#include "model/flops.h"

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

double automodel_step_flops(const NemotronHConfig& config, std::int64_t sequences,
                            std::int64_t sequence_length) {
  double per_token = 6 * real(config.hidden_size) * real(config.vocab_size);
  for (const BlockKind kind : config.blocks)
    per_token += kind->automodel_flops(config, real(sequence_length));
  return real(sequences) * real(sequence_length) * per_token;
}

}  // namespace nemocube
