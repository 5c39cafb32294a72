#include "model/blocks/gated_delta_net/gated_delta_net_block.h"

#include "model/blocks/block_type.h"
#include "model/blocks/config_keys.h"
#include "model/blocks/gated_delta_net/gated_delta_net.h"
#include "model/config.h"
#include "model/config_checks.h"

namespace nemocube {
namespace {

using C = BlockConfig;
using Rows = std::vector<RowSegment>;

/// Tokens of a chunk (DeltaRuleOptions).
constexpr double chunk_tokens = 64;

std::optional<Shape> of_value_heads(const C& c) { return shape_of(c.gated_delta_net.num_value_heads); }
std::optional<Shape> value_head_projection(const C& c) {
  return shape_of(c.gated_delta_net.num_value_heads, c.hidden_size);
}
Rows convolved_rows(const C& c) {  // q, k, v
  const RowSegment keys{c.gated_delta_net.key_width(), c.gated_delta_net.num_key_heads};
  return {keys, keys, {c.gated_delta_net.value_width()}};
}

constexpr CutRule projection{.style = TensorStyle::colwise,
                             .replicable = true,
                             .segments = convolved_rows,
                             .shared = SharedHeads::state};
constexpr CutRule convolution{.module = "in_proj_qkv",
                              .style = TensorStyle::colwise,
                              .replicable = true,
                              .segments = convolved_rows,
                              .shared = SharedHeads::state};
constexpr CutRule of_heads{.module = "in_proj_qkv", .style = TensorStyle::colwise, .replicable = true};
constexpr std::string_view norm_words[] = {"replicated_with_grad_allreduce"};
constexpr CutRule of_each_head{.module = "in_proj_qkv",
                               .style = TensorStyle::colwise,
                               .replicable = true,
                               .also = norm_words,
                               .of_each_head = true};

const BlockTensor tensor_table[] = {
    {.name = "dt_bias", .shape = of_value_heads, .law = InitialLaw::one, .cut = of_heads, .keep_f32 = true},
    {.name = "A_log",
     .shape = of_value_heads,
     .law = InitialLaw::a_log_uniform,
     .cut = of_heads,
     .keep_f32 = true},
    {.name = "conv1d.weight",
     .shape =
         [](const C& c) { return shape_of(c.gated_delta_net.conv_dim(), 1, c.gated_delta_net.conv_kernel); },
     .law = InitialLaw::input,
     .cut = convolution,
     .adaptable = false},
    {"norm.weight", [](const C& c) { return shape_of(c.gated_delta_net.value_head_dim); }, InitialLaw::one,
     of_each_head},
    {"out_proj.weight", [](const C& c) { return shape_of(c.hidden_size, c.gated_delta_net.value_width()); },
     InitialLaw::output, cut_by_rows},
    {"in_proj_qkv.weight", [](const C& c) { return shape_of(c.gated_delta_net.conv_dim(), c.hidden_size); },
     InitialLaw::input, projection},
    {"in_proj_z.weight", [](const C& c) { return shape_of(c.gated_delta_net.value_width(), c.hidden_size); },
     InitialLaw::input, cut_by_columns},
    {"in_proj_b.weight", value_head_projection, InitialLaw::input, cut_by_columns},
    {"in_proj_a.weight", value_head_projection, InitialLaw::input, cut_by_columns},
};

class GatedDeltaNetBlock final : public BlockType {
 public:
  constexpr GatedDeltaNetBlock()
      : BlockType({'D', "gated_delta_net", nullptr, "a Gated DeltaNet block", 2}) {}

  void validate(const C& c) const override {
    const GatedDeltaNetConfig& d = c.gated_delta_net;
    check_size("linear_num_key_heads", d.num_key_heads);
    check_size("linear_num_value_heads", d.num_value_heads);
    check_size("linear_key_head_dim", d.key_head_dim);
    check_size("linear_value_head_dim", d.value_head_dim);
    check_size("linear_conv_kernel_dim", d.conv_kernel);
    check_width("linear_num_key_heads x linear_key_head_dim", d.num_key_heads, d.key_head_dim);
    check_width("linear_num_value_heads x linear_value_head_dim", d.num_value_heads, d.value_head_dim);
    check_multiple("linear_num_value_heads", d.num_value_heads, "linear_num_key_heads", d.num_key_heads);
  }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const TensorName& mixer) const override {
    return std::make_unique<GatedDeltaNetMixer>(sources, mixer);
  }

  std::string_view entry(const C&) const override { return "in_proj_qkv"; }
  std::vector<Division> divisions(const C& c) const override {
    return {{"linear_num_value_heads", c.gated_delta_net.num_value_heads, entry(c)},
            {"linear_num_key_heads", c.gated_delta_net.num_key_heads, entry(c), SharedHeads::state}};
  }
  BlockCores cores(const C& c) const override {
    const GatedDeltaNetConfig& d = c.gated_delta_net;
    return {.scan = BlockCores::Scan{.heads = d.num_value_heads,
                                     .head_dim = d.value_head_dim,
                                     .groups = d.num_key_heads,
                                     .state_size = d.key_head_dim,
                                     .normed = false,
                                     .numbers_of_head = 2,
                                     .words = delta_net_words}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors& of) const override {
    using enum BlockWork::Part;
    const GatedDeltaNetConfig& d = c.gated_delta_net;
    const double tp = real(of.tp), h = real(c.hidden_size), values = real(d.value_width()) / tp,
                 keys = real(d.key_width()) / tp, channels = real(d.conv_dim()) / tp,
                 heads = real(d.num_value_heads) / tp;
    work.product(products, rows.all, h, channels + values + 2 * heads);
    work.product(products, rows.all, values, h);
    const double taps = rows.all * 2 * channels * real(d.conv_kernel);
    work.operations(BlockWork::Part::convolution, taps, 2 * taps);
    // Products within a chunk and with the state of each value head (docs/gated_delta_rule.md).
    const double tiles =
        rows.all * (2 * (chunk_tokens + 1) * (keys + values) + 6 * values * real(d.key_head_dim));
    work.operations(scan, tiles, 2 * tiles);
    work.numbers(rows.all * (2 * channels + 3 * values), rows.all * (3 * channels + 5 * values));
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors& by) const override {
    const GatedDeltaNetConfig& d = c.gated_delta_net;
    const double heads = real(part_of_size(d.num_value_heads, by.tp)),
                 values = heads * real(d.value_head_dim),
                 channels = values + 2 * real(part_of_size(d.num_key_heads, by.tp)) * real(d.key_head_dim);
    const double chunks = (rows.tokens / chunk_tokens + rows.sequences) / rows.cp;
    const std::int64_t projected = of.stored(rows.all * channels) + of.stored(rows.all * values) +
                                   2 * of.stored(rows.all * heads),
                       convolved = of.stored(rows.all * channels);
    // What the rule and the norm return; the scale of each norm; the states at the starts of chunks.
    return {projected + convolved + 2 * of.stored(rows.all * values) + of.wide(rows.all * heads) +
                of.wide(chunks * values * real(d.key_head_dim)),
            projected + convolved};
  }
  std::int64_t decode_bytes(const C& c, const TensorBytes& of, std::int64_t sequences,
                            std::int64_t) const override {
    const GatedDeltaNetConfig& d = c.gated_delta_net;
    return of.wide(real(sequences) * real(d.conv_kernel) * real(d.conv_dim())) +
           of.wide(real(sequences) * real(d.value_width()) * real(d.key_head_dim));
  }
};

constinit const GatedDeltaNetBlock type;

}  // namespace

constinit const BlockKind gated_delta_net_block(type);

void GatedDeltaNetConfig::visit(ConfigKeys& keys) {
  keys.key({"linear_conv_kernel_dim"}, conv_kernel);
  keys.key({"linear_key_head_dim"}, key_head_dim);
  keys.key({"linear_value_head_dim"}, value_head_dim);
  keys.key({"linear_num_key_heads"}, num_key_heads);
  keys.key({"linear_num_value_heads"}, num_value_heads);
}

}  // namespace nemocube
