#include "model/blocks/linear_layer/linear_block.h"

#include "model/blocks/block_type.h"
#include "model/blocks/linear.h"
#include "model/config.h"

namespace nemocube {
namespace {

using C = BlockConfig;

// Cut over tensor-parallel ranks, the layer would need two exchanges for one small product. So all ranks
// compute all rows.
constexpr CutRule uncut{.style = TensorStyle::replicated, .replicable = true};

const BlockTensor tensor_table[] = {
    {"linear.weight", [](const C& c) { return shape_of(c.hidden_size, c.hidden_size); }, InitialLaw::output,
     uncut},
};

/// linear x, [T, hidden].
class LinearMixer final : public Mixer {
 public:
  LinearMixer(const MixerSources& sources, const TensorName& name)
      : linear_(sources, name / "linear", PointRole::way_out) {
    SharedWays* const way_in = sources.way_in();
    sources.points.emplace(
        name / "whole.input",
        TransformPoint{way_in ? &way_in->in : &input_, PointRole::way_in, name / "linear", nullptr, way_in});
  }
  Var forward(Context& ctx, const Var& x, const MixerCall& call) override {
    return linear_(ctx, apply(input_, ctx, x, call.sequences), call.sequences);
  }

 private:
  Transform input_;
  Linear linear_;
};

class LinearBlock final : public BlockType {
 public:
  constexpr LinearBlock() : BlockType({'L', "linear", nullptr, "a linear block", 0.5}) {}

  void validate(const C&) const override {}
  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const TensorName& mixer) const override {
    return std::make_unique<LinearMixer>(sources, mixer);
  }
  std::string_view entry(const C&) const override { return "linear"; }
  std::vector<Division> divisions(const C&) const override { return {}; }
  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors&) const override {
    work.product(BlockWork::Part::products, rows.all, real(c.hidden_size), real(c.hidden_size));
  }
  BlockMemory memory(const C&, const BlockRows&, const TensorBytes&, const BlockDivisors&) const override {
    return {};
  }
};

constinit const LinearBlock type;

}  // namespace

constinit const BlockKind linear_block(type);

}  // namespace nemocube
