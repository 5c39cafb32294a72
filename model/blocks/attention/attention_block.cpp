#include "model/blocks/attention/attention_block.h"

#include "model/blocks/attention/attention.h"
#include "model/blocks/block_type.h"
#include "model/blocks/config_keys.h"
#include "model/config.h"
#include "model/config_checks.h"

namespace nemocube {
namespace {

using C = BlockConfig;

constexpr CutRule keys_or_values{
    .style = TensorStyle::colwise,
    .replicable = true,
    .segments =
        [](const C& c) {
          return std::vector{RowSegment{c.attention.kv_width(), c.attention.num_key_value_heads}};
        },
    .shared = SharedHeads::key_value};

/// Of q_proj.
std::int64_t query_rows(const C& c) { return (c.attention.output_gate ? 2 : 1) * c.attention.q_width(); }

/// Of a mixer with three projections.
std::optional<Shape> projection(const C& c, std::int64_t width) {
  return shape_if(!c.attention.packed, width, c.hidden_size);
}
bool has_keys(const C& c) { return !c.attention.packed && !c.attention.kv_block; }
bool has_values(const C& c) { return has_keys(c) && !c.attention.keys_are_values; }
std::optional<Shape> key(const C& c) { return shape_if(has_keys(c), c.attention.kv_width(), c.hidden_size); }
std::optional<Shape> value(const C& c) {
  return shape_if(has_values(c), c.attention.kv_width(), c.hidden_size);
}
std::optional<Shape> key_bias(const C& c) {
  return shape_if(has_keys(c) && c.attention.qkv_bias, c.attention.kv_width());
}
std::optional<Shape> value_bias(const C& c) {
  return shape_if(has_values(c) && c.attention.qkv_bias, c.attention.kv_width());
}

constexpr CutRule packed_projections{
    .style = TensorStyle::colwise, .replicable = true, .segments = [](const C& c) {
      return std::vector(3, RowSegment{c.attention.q_width(), c.attention.num_attention_heads});
    }};

constexpr std::string_view head_norm_words[] = {"replicated_with_grad_allreduce"};
constexpr CutRule of_each_head{.module = "q_proj",
                               .style = TensorStyle::colwise,
                               .replicable = true,
                               .also = head_norm_words,
                               .of_each_head = true};

/// The weight of a norm of heads whose fresh values are 1, or those of one whose fresh values are 0.
std::optional<Shape> norm_from_one(const C& c) {
  const auto& norm = c.attention.head_norm;
  return shape_if(norm && *norm != NormKind::rmsnorm_one_plus_w, c.attention.head_dim);
}
std::optional<Shape> norm_from_zero(const C& c) {
  return shape_if(c.attention.head_norm == NormKind::rmsnorm_one_plus_w, c.attention.head_dim);
}
std::optional<Shape> norm_bias(const C& c) {
  return shape_if(c.attention.head_norm == NormKind::layernorm, c.attention.head_dim);
}
/// The same of a mixer with keys of its own.
template <std::optional<Shape> (*shape)(const C&)>
std::optional<Shape> of_keys(const C& c) {
  return c.attention.kv_block ? std::nullopt : shape(c);
}

const BlockTensor tensor_table[] = {
    {"qkv_proj.weight",
     [](const C& c) { return shape_if(c.attention.packed, 3 * c.attention.q_width(), c.hidden_size); },
     InitialLaw::input, packed_projections},
    {"q_proj.weight", [](const C& c) { return projection(c, query_rows(c)); }, InitialLaw::input,
     cut_by_columns},
    {"q_proj.bias", [](const C& c) { return shape_if(c.attention.qkv_bias, query_rows(c)); },
     InitialLaw::zero, cut_by_columns},
    {"k_proj.weight", key, InitialLaw::input, keys_or_values},
    {"k_proj.bias", key_bias, InitialLaw::zero, keys_or_values},
    {"v_proj.weight", value, InitialLaw::input, keys_or_values},
    {"v_proj.bias", value_bias, InitialLaw::zero, keys_or_values},
    {"o_proj.weight", [](const C& c) { return shape_of(c.hidden_size, c.attention.q_width()); },
     InitialLaw::output, cut_by_rows},
    {"o_proj.bias", [](const C& c) { return shape_if(c.attention.output_bias, c.hidden_size); },
     InitialLaw::zero, cut_by_rows_bias},
    {"q_norm.weight", norm_from_one, InitialLaw::one, of_each_head},
    {"q_norm.weight", norm_from_zero, InitialLaw::zero, of_each_head},
    {"q_norm.bias", norm_bias, InitialLaw::zero, of_each_head},
    {"k_norm.weight", of_keys<norm_from_one>, InitialLaw::one, of_each_head},
    {"k_norm.weight", of_keys<norm_from_zero>, InitialLaw::zero, of_each_head},
    {"k_norm.bias", of_keys<norm_bias>, InitialLaw::zero, of_each_head},
};

class AttentionBlock final : public BlockType {
 public:
  constexpr AttentionBlock() : BlockType({'*', "attention", "full_attention", "an attention block", 2}) {}

  void validate(const C& c) const override {
    check_size("num_attention_heads", c.attention.num_attention_heads);
    check_size("num_key_value_heads", c.attention.num_key_value_heads);
    check_size("head_dim", c.attention.head_dim);
    check_width("num_attention_heads x head_dim", c.attention.num_attention_heads, c.attention.head_dim);
    check_multiple("num_attention_heads", c.attention.num_attention_heads, "num_key_value_heads",
                   c.attention.num_key_value_heads);
    require(!c.attention.packed || (c.attention.num_key_value_heads == c.attention.num_attention_heads &&
                                    !c.attention.qkv_bias && !c.attention.head_norm),
            "qkv_proj: want as many key-value heads as query heads, and neither biases nor norms of heads");
    require(!c.attention.packed ||
                !(c.attention.kv_block || c.attention.keys_are_values || c.attention.value_norm),
            "qkv_proj: want keys and values of the block's own, and no norm of values");
    require(!c.attention.output_gate || (c.attention.head_norm && !c.attention.packed),
            "attn_output_gate: want norms of heads, and not one layer qkv_proj");
    check_range("scale of the scores", c.attention.score_scale, 0, largest_number);
    check_range("key_multiplier", c.attention.key_multiplier, std::numeric_limits<double>::min(),
                largest_number);
    for (const double factor : {c.attention.input_multiplier, c.attention.output_multiplier})
      check_range("a multiplier of attention", factor, -largest_number, largest_number);
    validate_rope(c.attention.rope, c.attention.head_dim);
    require(c.attention.window >= 0, "sliding_window: want at least 1, or none, got ", c.attention.window);
    const PositionScale& scale = c.attention.position_scale;
    check_range("llama_4_scaling_beta", scale.beta, 0, largest_number);
    if (scale.beta > 0) check_size("original_max_position_embeddings", scale.positions);
  }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const TensorName& mixer) const override {
    return std::make_unique<AttentionMixer>(sources, mixer);
  }

  std::string_view entry(const C& c) const override { return c.attention.packed ? "qkv_proj" : "q_proj"; }
  std::vector<Division> divisions(const C& c) const override {
    return {{"num_attention_heads", c.attention.num_attention_heads, entry(c)},
            {"num_key_value_heads", c.attention.num_key_value_heads, entry(c),
             c.attention.packed ? SharedHeads::none : SharedHeads::key_value}};
  }
  BlockCores cores(const C& c) const override {
    return {.attention = BlockCores::Attention{c.attention.num_attention_heads,
                                               c.attention.num_key_value_heads, c.attention.head_dim}};
  }
  std::vector<SideRows> side_rows(const C& c, std::int64_t) const override {
    if (!c.attention.kv_block) return {};
    const std::int64_t from = *c.attention.kv_block, width = c.attention.kv_width();
    const TensorName cut_with = mixer_name(from, "k_proj.weight");
    return {{shared_keys_of(from), from, width, cut_with}, {shared_values_of(from), from, width, cut_with}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors& of) const override {
    using enum BlockWork::Part;
    const double h = real(c.hidden_size), heads = real(c.attention.num_attention_heads) / real(of.tp),
                 kv = c.attention.kv_block
                          ? 0
                          : std::max(1.0, real(c.attention.num_key_value_heads) / real(of.tp)),
                 width = real(c.attention.head_dim);
    work.product(
        products, rows.all, h,
        width * ((c.attention.output_gate ? 2 : 1) * heads + (c.attention.keys_are_values ? 1 : 2) * kv));
    work.product(products, rows.all, width * heads, h);
    // Keys that a query sees on average: those of the causal half, or of the window in it.
    const double window = real(c.attention.window);
    const double seen = window > 0 && window < rows.length
                            ? window - window * (window - 1) / (2 * rows.length)
                            : (rows.length + 1) / 2;
    const double scores = rows.all * 4 * heads * width * seen;
    work.operations(BlockWork::Part::attention, scores, 2.5 * scores);
    const double of_heads = rows.all * width * (heads + kv);
    if (c.attention.head_norm) work.numbers(2 * of_heads, 3 * of_heads);
    if (c.attention.value_norm) work.numbers(2 * rows.all * width * kv, 3 * rows.all * width * kv);
    if (c.attention.output_gate) work.numbers(3 * rows.all * width * heads, 5 * rows.all * width * heads);
    if (c.attention.rope.type != RopeType::none) work.numbers(2 * of_heads, 2 * of_heads);
    for (const double factor : {c.attention.input_multiplier, c.attention.output_multiplier})
      if (factor != 1) work.numbers(2 * rows.all * h, 2 * rows.all * h);
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors& by) const override {
    const double width = real(c.attention.head_dim),
                 heads = real(part_of_size(c.attention.num_attention_heads, by.tp)),
                 kv = real(part_of_size(c.attention.num_key_value_heads, by.tp));
    const std::int64_t q = of.stored(rows.all * heads * width), of_kv = of.stored(rows.all * kv * width),
                       k = c.attention.kv_block ? 0 : of_kv,
                       factors = c.attention.kv_block ? 0 : of.wide(rows.all * kv);
    // Keys and values have gradients in the dtype of the model and sums in f32. A norm of heads keeps its
    // inputs, and a number of each head. Values that are made of the keys' products share the input.
    const std::int64_t normed =
        (c.attention.head_norm ? q + k + of.wide(rows.all * heads) + factors : 0) +
        (c.attention.value_norm ? (c.attention.keys_are_values ? 0 : k) + factors : 0);
    const std::int64_t scaled =
        c.attention.input_multiplier != 1 ? of.stored(rows.all * real(c.hidden_size)) : 0;
    // A gate is kept beside the result; what goes to o_proj is computed again in backward.
    const std::int64_t gate = c.attention.output_gate ? q : 0;
    return {scaled + normed + gate + 2 * q + 2 * k + of.wide(rows.all * heads),
            2 * q + 2 * of_kv + 2 * of.wide(rows.all * kv * width)};
  }
  // Keys and values of a sequence lie in buffers that double when they are full.
  std::int64_t decode_bytes(const C& c, const TensorBytes& of, std::int64_t sequences,
                            std::int64_t length) const override {
    if (c.attention.kv_block) return 0;  // the block with the keys has the cache
    return sequences * 2 * of.stored(2 * real(length) * real(c.attention.kv_width()));
  }
};

constinit const AttentionBlock type;

}  // namespace

constinit const BlockKind attention_block(type);

void AttentionConfig::visit(ConfigKeys& keys) {
  keys.key({"num_attention_heads"}, num_attention_heads);
  keys.key({"num_key_value_heads", "num_query_groups"}, num_key_value_heads);
  keys.key({"head_dim", "attention_head_dim", "kv_channels"}, head_dim);
}

}  // namespace nemocube
