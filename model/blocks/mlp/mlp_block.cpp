#include "model/blocks/mlp/mlp_block.h"

#include "model/blocks/block_type.h"
#include "model/blocks/mlp/mlp.h"
#include "model/blocks/mlp/mlp_work.h"
#include "model/config.h"
#include "model/config_checks.h"

namespace nemocube {
namespace {

using C = BlockConfig;

const BlockTensor tensor_table[] = {
    {"up_proj.weight", [](const C& c) { return shape_of(c.intermediate_size, c.hidden_size); },
     InitialLaw::input, cut_by_columns},
    {"up_proj.bias", [](const C& c) { return shape_if(c.mlp_bias, c.intermediate_size); }, InitialLaw::zero,
     cut_by_columns},
    {"down_proj.weight", [](const C& c) { return shape_of(c.hidden_size, c.intermediate_size); },
     InitialLaw::output, cut_by_rows},
    {"down_proj.bias", [](const C& c) { return shape_if(c.mlp_bias, c.hidden_size); }, InitialLaw::zero,
     cut_by_rows_bias},
};

class MlpBlock final : public BlockType {
 public:
  constexpr MlpBlock() : BlockType({'-', "mlp", nullptr, "an MLP block", 1}) {}

  void validate(const C& c) const override { check_size("intermediate_size", c.intermediate_size); }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const std::string& mixer) const override {
    return std::make_unique<MlpMixer>(sources, mixer);
  }

  std::string_view entry() const override { return "up_proj"; }
  std::vector<Division> divisions(const C& c) const override {
    return {{"intermediate_size", c.intermediate_size, entry()}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors& of) const override {
    add_mlp_work(work, rows.all, real(c.hidden_size), real(c.intermediate_size) / real(of.tp));
  }
  double automodel_flops(const C& c, double) const override {
    return 18 * real(c.hidden_size) * real(c.intermediate_size);
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors& by) const override {
    const std::int64_t inner = of.stored(rows.all * real(part_of_size(c.intermediate_size, by.tp)));
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

}  // namespace nemocube
