#include "model/blocks/mamba/mamba_block.h"

#include <algorithm>
#include <array>

#include "model/blocks/block_type.h"
#include "model/blocks/config_keys.h"
#include "model/blocks/mamba/mamba.h"
#include "model/config.h"
#include "model/config_checks.h"

namespace nemocube {
namespace {

using C = BlockConfig;
using Rows = std::vector<RowSegment>;

std::optional<Shape> heads(const C& c) { return shape_of(c.mamba.num_heads); }
Rows projected_rows(const C& c) {  // z, x, B, C, dt
  const RowSegment inner{c.mamba.inner()}, state{c.mamba.state_width(), c.mamba.n_groups};
  return {inner, inner, state, state, {c.mamba.num_heads}};
}
Rows convolved_rows(const C& c) {  // x, B, C
  const RowSegment state{c.mamba.state_width(), c.mamba.n_groups};
  return {{c.mamba.inner()}, state, state};
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
    {"in_proj.weight", [](const C& c) { return shape_of(c.mamba.in_proj_width(), c.hidden_size); },
     InitialLaw::input, projection},
    {"in_proj.bias", [](const C& c) { return shape_if(c.mamba.in_proj_bias, c.mamba.in_proj_width()); },
     InitialLaw::zero, projection},
    {"conv1d.weight", [](const C& c) { return shape_of(c.mamba.conv_dim(), 1, c.mamba.conv_kernel); },
     InitialLaw::conv, convolution},
    {"conv1d.bias", [](const C& c) { return shape_if(c.mamba.use_conv_bias, c.mamba.conv_dim()); },
     InitialLaw::conv, convolution},
    {.name = "dt_bias", .shape = heads, .law = InitialLaw::dt_bias, .cut = of_heads, .keep_f32 = true},
    {.name = "A_log", .shape = heads, .law = InitialLaw::a_log, .cut = of_heads, .keep_f32 = true},
    {.name = "D", .shape = heads, .law = InitialLaw::one, .cut = of_heads, .keep_f32 = true},
    {"norm.weight", [](const C& c) { return shape_if(c.mamba.norm != MambaNorm::none, c.mamba.inner()); },
     InitialLaw::one, of_heads},
    {"out_proj.weight", [](const C& c) { return shape_of(c.hidden_size, c.mamba.inner()); },
     InitialLaw::scan_output, cut_by_rows},
    {"out_proj.bias", [](const C& c) { return shape_if(c.mamba.out_proj_bias, c.hidden_size); },
     InitialLaw::zero, cut_by_rows_bias},
};

/// Whether the parts of the projection have a factor in a pass of their own, and whether the input has.
bool scales_parts(const C& c) {
  const MambaMultipliers& by = c.mamba.multipliers;
  const double all = c.mamba.in_proj_bias ? 1 : by.input;
  return std::ranges::any_of(std::array{by.z, by.x, by.b, by.c, by.dt},
                             [=](double factor) { return all * factor != 1; });
}
bool scales_input(const C& c) { return c.mamba.in_proj_bias && c.mamba.multipliers.input != 1; }

class MambaBlock final : public BlockType {
 public:
  constexpr MambaBlock() : BlockType({'M', "mamba", "linear_attention", "a Mamba block", 2}) {}

  void validate(const C& c) const override {
    check_size("mamba_num_heads", c.mamba.num_heads);
    check_size("mamba_head_dim", c.mamba.head_dim);
    check_size("n_groups", c.mamba.n_groups);
    check_size("ssm_state_size", c.mamba.ssm_state_size);
    check_size("conv_kernel", c.mamba.conv_kernel);
    check_size("chunk_size", c.mamba.chunk_size);
    check_width("mamba_num_heads x mamba_head_dim", c.mamba.num_heads, c.mamba.head_dim);
    check_width("n_groups x ssm_state_size", c.mamba.n_groups, c.mamba.ssm_state_size);
    check_multiple("mamba_num_heads", c.mamba.num_heads, "n_groups", c.mamba.n_groups);
    check_range("time_step_min", c.mamba.time_step_min, std::numeric_limits<double>::min(), largest_number);
    check_range("time_step_max", c.mamba.time_step_max, c.mamba.time_step_min, largest_number);
    check_range("time_step_floor", c.mamba.time_step_floor, 0, largest_number);
    const MambaMultipliers& by = c.mamba.multipliers;
    for (const double factor : {by.input, by.z, by.x, by.b, by.c, by.dt, by.output})
      check_range("a multiplier of a Mamba mixer", factor, -largest_number, largest_number);
    check_range("time_step_limit[0]", c.mamba.time_step_limit_low, 0, largest_number);
    check_range("time_step_limit[1]", c.mamba.time_step_limit_high, c.mamba.time_step_limit_low,
                std::numeric_limits<double>::infinity());
  }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const TensorName& mixer) const override {
    return std::make_unique<MambaMixer>(sources, mixer);
  }

  std::string_view entry(const C&) const override { return "in_proj"; }
  std::vector<Division> divisions(const C& c) const override {
    return {{"mamba_num_heads", c.mamba.num_heads, entry(c)},
            {"n_groups", c.mamba.n_groups, entry(c), SharedHeads::state}};
  }
  BlockCores cores(const C& c) const override {
    return {.scan = BlockCores::Scan{.heads = c.mamba.num_heads,
                                     .head_dim = c.mamba.head_dim,
                                     .groups = c.mamba.n_groups,
                                     .state_size = c.mamba.ssm_state_size,
                                     .normed = c.mamba.norm != MambaNorm::none,
                                     .words = mamba_words}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors& of) const override {
    using enum BlockWork::Part;
    const double tp = real(of.tp), h = real(c.hidden_size), d = real(c.mamba.inner()) / tp,
                 states = real(c.mamba.state_width()) / tp, channels = real(c.mamba.conv_dim()) / tp,
                 chunk = real(c.mamba.chunk_size);
    work.product(products, rows.all, h, real(c.mamba.in_proj_width()) / tp);
    work.product(products, rows.all, d, h);
    const double taps = rows.all * 2 * channels * real(c.mamba.conv_kernel);
    work.operations(BlockWork::Part::convolution, taps, 2 * taps);
    const double tiles =
        rows.all * (2 * chunk * states + 2 * chunk * d + 4 * d * real(c.mamba.ssm_state_size));
    work.operations(scan, tiles, 2 * tiles);
    work.numbers(rows.all * (2 * channels + 3 * d), rows.all * (3 * channels + 5 * d));
    const double scaled = (scales_input(c) ? h : 0) +
                          (scales_parts(c) ? real(c.mamba.in_proj_width()) / tp : 0) +
                          (c.mamba.multipliers.output != 1 ? h : 0);
    if (scaled > 0) work.numbers(2 * rows.all * scaled, 2 * rows.all * scaled);
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors& by) const override {
    const double heads = real(part_of_size(c.mamba.num_heads, by.tp)),
                 groups = real(part_of_size(c.mamba.n_groups, by.tp)), inner = heads * real(c.mamba.head_dim),
                 channels = inner + 2 * groups * real(c.mamba.ssm_state_size);
    const double chunks = (rows.tokens / real(c.mamba.chunk_size) + rows.sequences) / rows.cp;
    const std::int64_t projected = of.stored(rows.all * (inner + channels + heads)),
                       convolved = of.stored(rows.all * channels);
    // What the scan and the norm return; the scale of each norm; the states at the starts of chunks. A gate
    // alone is computed again in backward. A scaled input is kept for the projection.
    const bool normed = c.mamba.norm != MambaNorm::none;
    return {projected + convolved + (normed ? 2 : 1) * of.stored(rows.all * inner) +
                (normed ? of.wide(rows.all * groups) : 0) +
                of.wide(chunks * inner * real(c.mamba.ssm_state_size)) +
                (scales_input(c) ? of.stored(rows.all * real(c.hidden_size)) : 0),
            projected + convolved};
  }
  std::int64_t decode_bytes(const C& c, const TensorBytes& of, std::int64_t sequences,
                            std::int64_t) const override {
    return of.wide(real(sequences) * real(c.mamba.conv_kernel) * real(c.mamba.conv_dim())) +
           of.wide(real(sequences) * real(c.mamba.inner()) * real(c.mamba.ssm_state_size));
  }
};

constinit const MambaBlock type;

}  // namespace

constinit const BlockKind mamba_block(type);

void MambaConfig::visit(ConfigKeys& keys) {
  keys.key({"mamba_num_heads"}, num_heads);
  keys.key({"mamba_head_dim"}, head_dim);
  keys.key({"n_groups", "mamba_n_groups", "mamba_num_groups"}, n_groups);
  keys.key({"ssm_state_size", "mamba_state_dim"}, ssm_state_size);
  keys.key({"conv_kernel", "mamba_d_conv"}, conv_kernel);
  keys.key({"chunk_size", "mamba_chunk_size"}, chunk_size);
  keys.key({"use_conv_bias", "mamba_conv_bias"}, use_conv_bias);
  keys.key({"use_bias"}, in_proj_bias);
  out_proj_bias = in_proj_bias;
  keys.key({"time_step_min", "mamba_dt_min"}, time_step_min);
  keys.key({"time_step_max", "mamba_dt_max"}, time_step_max);
  keys.key({"time_step_floor", "mamba_dt_init_floor"}, time_step_floor);
  keys.limits({"time_step_limit", "mamba_dt_limit"}, time_step_limit_low, time_step_limit_high);
}

}  // namespace nemocube
