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

std::optional<Shape> inner_bias(const C& c) { return shape_if(c.mlp.bias, c.mlp.intermediate_size); }

/// An MLP that keeps the result of its activation for backward.
bool is_relu2(const C& c) { return !c.mlp.gate && c.mlp.activation == MlpActivation::relu2; }

const BlockTensor tensor_table[] = {
    {"gate_proj.weight",
     [](const C& c) { return shape_if(c.mlp.gate.has_value(), c.mlp.intermediate_size, c.hidden_size); },
     InitialLaw::input, cut_by_columns},
    {"gate_proj.bias", [](const C& c) { return c.mlp.gate ? inner_bias(c) : std::nullopt; }, InitialLaw::zero,
     cut_by_columns},
    {"up_proj.weight", [](const C& c) { return shape_of(c.mlp.intermediate_size, c.hidden_size); },
     InitialLaw::input, cut_by_columns},
    {"up_proj.bias", inner_bias, InitialLaw::zero, cut_by_columns},
    {"down_proj.weight", [](const C& c) { return shape_of(c.hidden_size, c.mlp.intermediate_size); },
     InitialLaw::output, cut_by_rows},
    {"down_proj.bias", [](const C& c) { return shape_if(c.mlp.bias, c.hidden_size); }, InitialLaw::zero,
     cut_by_rows_bias},
};

class MlpBlock final : public BlockType {
 public:
  constexpr MlpBlock() : BlockType({'-', "mlp", nullptr, "an MLP block", 1}) {}

  void validate(const C& c) const override {
    check_size("intermediate_size", c.mlp.intermediate_size);
    for (const double factor : {c.mlp.gate_multiplier, c.mlp.output_multiplier})
      check_range("a multiplier of an MLP", factor, -largest_number, largest_number);
    require(c.mlp.gate || c.mlp.gate_multiplier == 1,
            "multiplier of the gate of an MLP without a gate: want 1, got ", c.mlp.gate_multiplier);
  }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const TensorName& mixer) const override {
    return std::make_unique<MlpMixer>(sources, mixer, sources.config.mlp);
  }

  std::string_view entry(const C&) const override { return "up_proj"; }
  std::vector<Division> divisions(const C& c) const override {
    return {{"intermediate_size", c.mlp.intermediate_size, entry(c)}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors& of) const override {
    const double width = real(c.hidden_size), inner = real(c.mlp.intermediate_size) / real(of.tp);
    const double scaled =
        (c.mlp.gate_multiplier != 1 ? inner : 0) + (c.mlp.output_multiplier != 1 ? width : 0);
    if (scaled > 0) work.numbers(2 * rows.all * scaled, 2 * rows.all * scaled);
    if (c.mlp.gate || is_relu2(c)) return add_mlp_work(work, c.mlp.gate, rows.all, width, inner);
    work.product(BlockWork::Part::products, rows.all, width, inner);
    work.product(BlockWork::Part::products, rows.all, inner, width);
    work.numbers(2 * rows.all * inner, 5 * rows.all * inner);  // gelu computes its result again in backward
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors& by) const override {
    const std::int64_t inner = of.stored(rows.all * real(part_of_size(c.mlp.intermediate_size, by.tp)));
    if (is_relu2(c)) return {inner, inner};
    // What goes to down_proj is computed again in backward.
    return {(c.mlp.gate ? 2 : 1) * inner, 2 * inner};
  }
};

constinit const MlpBlock type;

}  // namespace

constinit const BlockKind mlp_block(type);

void add_mlp_work(BlockWork& work, const std::optional<GateActivation>& gate, double rows, double width,
                  double inner) {
  for (int projection = 0; projection < (gate ? 2 : 1); ++projection)
    work.product(BlockWork::Part::products, rows, width, inner);
  work.product(BlockWork::Part::products, rows, inner, width);
  add_activation_work(work, gate, rows * inner);
}

void add_activation_work(BlockWork& work, const std::optional<GateActivation>& gate, double numbers) {
  // A gated activation computes its result again in backward.
  if (gate)
    work.numbers(3 * numbers, 5 * numbers);
  else
    work.numbers(numbers * (2 + 3) / 2, numbers * (2 + 3) / 2);
}

void MlpConfig::visit(ConfigKeys& keys) {
  keys.key({"intermediate_size"}, intermediate_size);
  keys.key({"mlp_bias"}, bias);
}

}  // namespace nemocube
