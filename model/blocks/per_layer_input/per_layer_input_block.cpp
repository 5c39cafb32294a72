#include "model/blocks/per_layer_input/per_layer_input_block.h"

#include "model/blocks/block_type.h"
#include "model/blocks/mlp/mlp_work.h"
#include "model/blocks/per_layer_input/per_layer_input.h"
#include "model/config.h"
#include "model/config_checks.h"

namespace nemocube {
namespace {

using C = BlockConfig;

/// Works on the rows of the residual stream that the rank has.
constexpr CutRule rows_of_stream{.style = TensorStyle::sequence_parallel};

const BlockTensor tensor_table[] = {
    {"per_layer_input_gate.weight",
     [](const C& c) { return shape_of(c.per_layer_input.size, c.hidden_size); }, InitialLaw::input,
     rows_of_stream},
    {"per_layer_projection.weight",
     [](const C& c) { return shape_of(c.hidden_size, c.per_layer_input.size); }, InitialLaw::output,
     rows_of_stream},
};

class PerLayerInputBlock final : public BlockType {
 public:
  constexpr PerLayerInputBlock()
      : BlockType({'P', "per_layer_input", nullptr, "a block of per-layer embeddings", 0.25}) {}

  void validate(const C& c) const override {
    check_size("hidden_size_per_layer_input", c.per_layer_input.size);
  }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const TensorName& mixer) const override {
    return std::make_unique<PerLayerInputMixer>(sources, mixer);
  }

  std::string_view entry(const C&) const override { return ""; }
  std::vector<Division> divisions(const C&) const override { return {}; }
  std::vector<SideRows> side_rows(const C& c, std::int64_t block) const override {
    return {{per_layer_input_of(block), SideRows::front, c.per_layer_input.size, {}}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors&) const override {
    const double width = real(c.hidden_size), inner = real(c.per_layer_input.size);
    work.product(BlockWork::Part::products, rows.stream, width, inner);
    work.product(BlockWork::Part::products, rows.stream, inner, width);
    add_activation_work(work, GateActivation::gelu_tanh, rows.stream * inner);
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors&) const override {
    // The gate is kept; the rows of the front are kept there. What goes to the projection is computed again.
    const std::int64_t inner = of.stored(rows.stream * real(c.per_layer_input.size));
    return {inner, 2 * inner};
  }
};

constinit const PerLayerInputBlock type;

}  // namespace

constinit const BlockKind per_layer_input_block(type);

}  // namespace nemocube
