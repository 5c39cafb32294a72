#include "model/blocks/mlp/mlp_block.h"

#include "model/blocks/block_type.h"
#include "model/blocks/config_keys.h"
#include "model/blocks/mlp/mlp.h"
#include "model/blocks/mlp/mlp_work.h"
#include "model/config.h"
#include "model/config_checks.h"

namespace nemocube {
namespace {

using C = BlockConfig;

const BlockTensor tensor_table[] = {
    {"up_proj.weight", [](const C& c) { return shape_of(c.mlp.intermediate_size, c.hidden_size); },
     InitialLaw::input, cut_by_columns},
    {"up_proj.bias", [](const C& c) { return shape_if(c.mlp.bias, c.mlp.intermediate_size); },
     InitialLaw::zero, cut_by_columns},
    {"down_proj.weight", [](const C& c) { return shape_of(c.hidden_size, c.mlp.intermediate_size); },
     InitialLaw::output, cut_by_rows},
    {"down_proj.bias", [](const C& c) { return shape_if(c.mlp.bias, c.hidden_size); }, InitialLaw::zero,
     cut_by_rows_bias},
};

class MlpBlock final : public BlockType {
 public:
  constexpr MlpBlock() : BlockType({'-', "mlp", nullptr, "an MLP block", 1}) {}

  void validate(const C& c) const override { check_size("intermediate_size", c.mlp.intermediate_size); }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const TensorName& mixer) const override {
    return std::make_unique<MlpMixer>(sources, mixer);
  }

  std::string_view entry() const override { return "up_proj"; }
  std::vector<Division> divisions(const C& c) const override {
    return {{"intermediate_size", c.mlp.intermediate_size, entry()}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors& of) const override {
    add_mlp_work(work, rows.all, real(c.hidden_size), real(c.mlp.intermediate_size) / real(of.tp));
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors& by) const override {
    const std::int64_t inner = of.stored(rows.all * real(part_of_size(c.mlp.intermediate_size, by.tp)));
    return {inner, inner};
  }
};

constinit const MlpBlock type;

}  // namespace

constinit const BlockKind mlp_block(type);

void add_mlp_work(BlockWork& work, double rows, double width, double inner) {
  work.product(BlockWork::Part::products, rows, width, inner);
  work.product(BlockWork::Part::products, rows, inner, width);
  add_activation_work(work, rows * inner);
}

void add_activation_work(BlockWork& work, double numbers) {
  work.numbers(numbers * (2 + 3) / 2, numbers * (2 + 3) / 2);
}

void MlpConfig::visit(ConfigKeys& keys) {
  keys.key({"intermediate_size"}, intermediate_size);
  keys.key({"mlp_bias"}, bias);
}

}  // namespace nemocube
