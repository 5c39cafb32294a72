#include "model/blocks/mamba/mamba_block.h"

#include "model/blocks/block_type.h"
#include "model/blocks/mamba/mamba.h"
#include "model/config.h"
#include "model/config_checks.h"

namespace nemocube {
namespace {

using C = BlockConfig;
using Rows = std::vector<RowSegment>;

std::optional<Shape> heads(const C& c) { return shape_of(c.mamba_num_heads); }
Rows projected_rows(const C& c) {  // z, x, B, C, dt
  const RowSegment inner{c.mamba_inner()}, state{c.state_width(), c.n_groups};
  return {inner, inner, state, state, {c.mamba_num_heads}};
}
Rows convolved_rows(const C& c) {  // x, B, C
  const RowSegment state{c.state_width(), c.n_groups};
  return {{c.mamba_inner()}, state, state};
}

constexpr CutRule projection{.module = "in_proj",
                             .style = TensorStyle::colwise,
                             .replicable = true,
                             .segments = projected_rows,
                             .shared = SharedHeads::state};
constexpr CutRule convolution{.module = "in_proj",
                              .style = TensorStyle::colwise,
                              .replicable = true,
                              .segments = convolved_rows,
                              .shared = SharedHeads::state};
constexpr CutRule of_heads{.module = "in_proj", .style = TensorStyle::colwise, .replicable = true};

const BlockTensor tensor_table[] = {
    {"in_proj.weight", [](const C& c) { return shape_of(c.in_proj_width(), c.hidden_size); },
     InitialLaw::input, projection},
    {"in_proj.bias", [](const C& c) { return shape_if(c.use_bias, c.in_proj_width()); }, InitialLaw::zero,
     projection},
    {"conv1d.weight", [](const C& c) { return shape_of(c.conv_dim(), 1, c.conv_kernel); }, InitialLaw::conv,
     convolution},
    {"conv1d.bias", [](const C& c) { return shape_if(c.use_conv_bias, c.conv_dim()); }, InitialLaw::conv,
     convolution},
    {.name = "dt_bias", .shape = heads, .law = InitialLaw::dt_bias, .cut = of_heads, .keep_f32 = true},
    {.name = "A_log", .shape = heads, .law = InitialLaw::a_log, .cut = of_heads, .keep_f32 = true},
    {.name = "D", .shape = heads, .law = InitialLaw::one, .cut = of_heads, .keep_f32 = true},
    {"norm.weight", [](const C& c) { return shape_of(c.mamba_inner()); }, InitialLaw::one, of_heads},
    {"out_proj.weight", [](const C& c) { return shape_of(c.hidden_size, c.mamba_inner()); },
     InitialLaw::scan_output, cut_by_rows},
    {"out_proj.bias", [](const C& c) { return shape_if(c.use_bias, c.hidden_size); }, InitialLaw::zero,
     cut_by_rows_bias},
};

class MambaBlock final : public BlockType {
 public:
  constexpr MambaBlock() : BlockType({'M', "mamba", "linear_attention", "a Mamba block", 2}) {}

  void validate(const C& c) const override {
    check_size("mamba_num_heads", c.mamba_num_heads);
    check_size("mamba_head_dim", c.mamba_head_dim);
    check_size("n_groups", c.n_groups);
    check_size("ssm_state_size", c.ssm_state_size);
    check_size("conv_kernel", c.conv_kernel);
    check_size("chunk_size", c.chunk_size);
    check_width("mamba_num_heads x mamba_head_dim", c.mamba_num_heads, c.mamba_head_dim);
    check_width("n_groups x ssm_state_size", c.n_groups, c.ssm_state_size);
    check_multiple("mamba_num_heads", c.mamba_num_heads, "n_groups", c.n_groups);
    check_range("time_step_min", c.time_step_min, std::numeric_limits<double>::min(), largest_number);
    check_range("time_step_max", c.time_step_max, c.time_step_min, largest_number);
    check_range("time_step_floor", c.time_step_floor, 0, largest_number);
    check_range("time_step_limit[0]", c.time_step_limit_low, 0, largest_number);
    check_range("time_step_limit[1]", c.time_step_limit_high, c.time_step_limit_low,
                std::numeric_limits<double>::infinity());
  }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const std::string& mixer) const override {
    return std::make_unique<MambaMixer>(sources, mixer);
  }

  std::string_view entry() const override { return "in_proj"; }
  std::vector<Division> divisions(const C& c) const override {
    return {{"mamba_num_heads", c.mamba_num_heads, entry()},
            {"n_groups", c.n_groups, entry(), SharedHeads::state}};
  }
  BlockCores cores(const C& c) const override {
    return {.scan = BlockCores::Scan{c.mamba_num_heads, c.mamba_head_dim, c.n_groups, c.ssm_state_size}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors& of) const override {
    using enum BlockWork::Part;
    const double tp = real(of.tp), h = real(c.hidden_size), d = real(c.mamba_inner()) / tp,
                 states = real(c.state_width()) / tp, channels = real(c.conv_dim()) / tp,
                 chunk = real(c.chunk_size);
    work.product(products, rows.all, h, real(c.in_proj_width()) / tp);
    work.product(products, rows.all, d, h);
    const double taps = rows.all * 2 * channels * real(c.conv_kernel);
    work.operations(BlockWork::Part::convolution, taps, 2 * taps);
    const double tiles = rows.all * (2 * chunk * states + 2 * chunk * d + 4 * d * real(c.ssm_state_size));
    work.operations(scan, tiles, 2 * tiles);
    work.numbers(rows.all * (2 * channels + 3 * d), rows.all * (3 * channels + 5 * d));
  }
  double automodel_flops(const C& c, double) const override {
    const double h = real(c.hidden_size), d = real(c.mamba_inner()), gn = real(c.state_width());
    return 6 * h * (2 * d + 2 * gn + real(c.mamba_num_heads)) + 21 * d * real(c.ssm_state_size) + 6 * d * h;
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors& by) const override {
    const double heads = real(part_of_size(c.mamba_num_heads, by.tp)),
                 groups = real(part_of_size(c.n_groups, by.tp)), inner = heads * real(c.mamba_head_dim),
                 channels = inner + 2 * groups * real(c.ssm_state_size);
    const double chunks = (rows.tokens / real(c.chunk_size) + rows.sequences) / rows.cp;
    const std::int64_t projected = of.stored(rows.all * (inner + channels + heads)),
                       convolved = of.stored(rows.all * channels);
    // What the scan and the norm return; the scale of each norm; the states at the starts of chunks.
    return {projected + convolved + 2 * of.stored(rows.all * inner) + of.wide(rows.all * groups) +
                of.wide(chunks * inner * real(c.ssm_state_size)),
            projected + convolved};
  }
  std::int64_t decode_bytes(const C& c, const TensorBytes& of, std::int64_t sequences,
                            std::int64_t) const override {
    return of.wide(real(sequences) * real(c.conv_kernel) * real(c.conv_dim())) +
           of.wide(real(sequences) * real(c.mamba_inner()) * real(c.ssm_state_size));
  }
};

constinit const MambaBlock type;

}  // namespace

constinit const BlockKind mamba_block(type);

}  // namespace nemocube
