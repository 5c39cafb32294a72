#include "model/blocks/moe/moe_block.h"

#include <algorithm>

#include "model/blocks/block_type.h"
#include "model/blocks/config_keys.h"
#include "model/blocks/mlp/mlp_work.h"
#include "model/blocks/moe/moe.h"
#include "model/config.h"
#include "model/config_checks.h"

namespace nemocube {
namespace {

using C = BlockConfig;

constexpr CutRule own_rows{.style = TensorStyle::sequence_parallel, .always_own_rows = true};
/// Works on the rows of the residual stream that the rank has.
constexpr CutRule rows_of_stream{.style = TensorStyle::sequence_parallel};
constexpr CutRule of_router{
    .module = "gate", .style = TensorStyle::sequence_parallel, .always_own_rows = true};
// Words of Hugging Face's plans for stacks of experts.
constexpr std::string_view words_in[] = {"colwise", "grouped_gemm"},
                           words_gated_in[] = {"packed_colwise", "grouped_gemm"},
                           words_out[] = {"rowwise", "grouped_gemm"};
constexpr CutRule experts_in{.style = TensorStyle::expert_colwise, .also = words_in};
constexpr CutRule gated_experts_in{
    .style = TensorStyle::expert_colwise, .also = words_gated_in, .segments = [](const C& c) {
      const RowSegment half{c.moe.intermediate_size};
      return std::vector{half, half};
    }};
constexpr CutRule experts_out{.style = TensorStyle::expert_rowwise, .also = words_out};

bool has_latent(const C& c) { return c.moe.latent_size > 0; }
std::int64_t expert_width(const C& c) { return has_latent(c) ? c.moe.latent_size : c.hidden_size; }

/// The shape of a tensor of the shared expert.
template <class... Sizes>
std::optional<Shape> shared_shape(const C& c, bool has, Sizes... sizes) {
  return shape_if(c.moe.has_shared_expert() && has, sizes...);
}

/// The weight of a norm of the mixer's own.
std::optional<Shape> own_norm(const C& c) { return shape_if(c.moe.own_norms, c.hidden_size); }

const BlockTensor tensor_table[] = {
    {.name = "gate.weight",
     .shape = [](const C& c) { return shape_of(c.moe.n_routed_experts, c.hidden_size); },
     .law = InitialLaw::input,
     .cut = of_router,
     .keep_f32_where = [](const C& c) { return c.moe.router_in_f32; },
     .adaptable = false},
    {.name = "gate.e_score_correction_bias",
     .shape = [](const C& c) { return shape_if(c.moe.correction_bias, c.moe.n_routed_experts); },
     .law = InitialLaw::zero,
     .cut = of_router,
     .keep_f32 = true,
     .buffer = true},
    {"gate.scale", own_norm, InitialLaw::one, of_router},
    {"gate.per_expert_scale", [](const C& c) { return shape_if(c.moe.own_norms, c.moe.n_routed_experts); },
     InitialLaw::one, of_router},
    {"experts_norm.weight", own_norm, InitialLaw::one, own_rows},
    {"experts_post_norm.weight", own_norm, InitialLaw::one, rows_of_stream},
    {"shared_norm.weight", own_norm, InitialLaw::one, rows_of_stream},
    {"shared_post_norm.weight", own_norm, InitialLaw::one, rows_of_stream},
    {"fc1_latent_proj.weight",
     [](const C& c) { return shape_if(has_latent(c), expert_width(c), c.hidden_size); }, InitialLaw::input,
     own_rows},
    {"fc1_latent_proj.bias",
     [](const C& c) { return shape_if(has_latent(c) && c.moe.bias, expert_width(c)); }, InitialLaw::zero,
     own_rows},
    {"fc2_latent_proj.weight",
     [](const C& c) { return shape_if(has_latent(c), c.hidden_size, expert_width(c)); }, InitialLaw::output,
     own_rows},
    {"fc2_latent_proj.bias", [](const C& c) { return shape_if(has_latent(c) && c.moe.bias, c.hidden_size); },
     InitialLaw::zero, own_rows},
    {.name = "experts.up_proj",
     .shape =
         [](const C& c) {
           return shape_if(!c.moe.gate, c.moe.n_routed_experts, c.moe.intermediate_size, expert_width(c));
         },
     .law = InitialLaw::input,
     .cut = experts_in,
     .experts = true},
    {.name = "experts.gate_up_proj",
     .shape =
         [](const C& c) {
           return shape_if(c.moe.gate.has_value(), c.moe.n_routed_experts, 2 * c.moe.intermediate_size,
                           expert_width(c));
         },
     .law = InitialLaw::input,
     .cut = gated_experts_in,
     .experts = true},
    {.name = "experts.down_proj",
     .shape =
         [](const C& c) {
           return shape_of(c.moe.n_routed_experts, expert_width(c), c.moe.intermediate_size);
         },
     .law = InitialLaw::output,
     .cut = experts_out,
     .experts = true},
    {"shared_experts.gate_proj.weight",
     [](const C& c) {
       return shared_shape(c, c.moe.gate.has_value(), c.moe.shared_expert_intermediate_size, c.hidden_size);
     },
     InitialLaw::input, cut_by_columns},
    {"shared_experts.gate_proj.bias",
     [](const C& c) {
       return shared_shape(c, c.moe.gate && c.moe.bias, c.moe.shared_expert_intermediate_size);
     },
     InitialLaw::zero, cut_by_columns},
    {"shared_experts.up_proj.weight",
     [](const C& c) { return shared_shape(c, true, c.moe.shared_expert_intermediate_size, c.hidden_size); },
     InitialLaw::input, cut_by_columns},
    {"shared_experts.up_proj.bias",
     [](const C& c) { return shared_shape(c, c.moe.bias, c.moe.shared_expert_intermediate_size); },
     InitialLaw::zero, cut_by_columns},
    {"shared_experts.down_proj.weight",
     [](const C& c) { return shared_shape(c, true, c.hidden_size, c.moe.shared_expert_intermediate_size); },
     InitialLaw::output, cut_by_rows},
    {"shared_experts.down_proj.bias", [](const C& c) { return shared_shape(c, c.moe.bias, c.hidden_size); },
     InitialLaw::zero, cut_by_rows_bias},
    {"shared_expert_gate.weight",
     [](const C& c) { return shared_shape(c, c.moe.shared_expert_gate, 1, c.hidden_size); },
     InitialLaw::input, rows_of_stream},
};

class MoeBlock final : public BlockType {
 public:
  constexpr MoeBlock() : BlockType({'E', "moe", nullptr, "a mixture-of-experts block", 3}) {}

  void validate(const C& c) const override {
    check_size("n_routed_experts", c.moe.n_routed_experts);
    check_size("num_experts_per_tok", c.moe.num_experts_per_tok);
    check_size("moe_intermediate_size", c.moe.intermediate_size);
    check_size("moe_shared_expert_intermediate_size", c.moe.shared_expert_intermediate_size, 0);
    check_size("moe_latent_size", c.moe.latent_size, 0);
    check_width("n_routed_experts x moe_intermediate_size", c.moe.n_routed_experts, c.moe.intermediate_size);
    check_size("n_group", c.moe.n_group);
    check_size("topk_group", c.moe.topk_group);
    check_multiple("n_routed_experts", c.moe.n_routed_experts, "n_group", c.moe.n_group);
    require(c.moe.topk_group <= c.moe.n_group, "topk_group: want at most n_group (", c.moe.n_group, "), got ",
            c.moe.topk_group);
    const std::int64_t group = c.moe.n_routed_experts / c.moe.n_group;
    // The score of a group is the sum of its two best experts.
    require(c.moe.n_group == 1 || group >= 2, "n_group: want at least two experts in a group, got ",
            c.moe.n_group, " groups of ", group);
    require(c.moe.num_experts_per_tok <= c.moe.topk_group * group, "num_experts_per_tok: want at most ",
            c.moe.topk_group * group, " (topk_group ", c.moe.topk_group, " x ", group,
            " experts in a group), got ", c.moe.num_experts_per_tok);
    require(!c.moe.own_norms || (c.moe.has_shared_expert() && c.residual == Residual::norm_after),
            "norms of a mixture's own: want a shared expert, and no norm before the mixer");
    check_range("routed_scaling_factor", c.moe.routed_scaling_factor, -largest_number, largest_number);
  }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const TensorName& mixer) const override {
    return std::make_unique<MoeMixer>(sources, mixer);
  }

  // Routed experts alone are given rows by their ranks.
  std::string_view entry(const C& c) const override {
    return c.moe.has_shared_expert() ? "shared_experts.up_proj" : "";
  }
  std::vector<Division> divisions(const C& c) const override {
    if (!c.moe.has_shared_expert()) return {};
    return {{"moe_shared_expert_intermediate_size", c.moe.shared_expert_intermediate_size, entry(c)}};
  }
  BlockCores cores(const C& c) const override {
    return {.experts =
                BlockCores::Experts{c.moe.n_routed_experts, c.moe.num_experts_per_tok, expert_width(c)}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors& of) const override {
    using enum BlockWork::Part;
    const double h = real(c.hidden_size), in = real(expert_width(c)), share = real(of.expert_tp),
                 choices = real(c.moe.num_experts_per_tok), width = real(c.moe.intermediate_size) / share,
                 arriving = rows.routed * choices * share, own = real(c.moe.n_routed_experts) / real(of.ep);
    work.product(products, rows.routed, h, real(c.moe.n_routed_experts));
    if (has_latent(c)) {
      work.product(products, rows.routed, h, in);
      work.product(products, rows.routed, in, h);
    }
    work.product(experts, arriving, in, (c.moe.gate ? 2 : 1) * width, own);
    work.product(experts, arriving, width, in, own);
    add_activation_work(work, c.moe.gate, arriving * width);
    const double moved = (rows.routed + rows.routed * choices) * in * 4;  // to the experts' rows and back
    work.numbers(moved / 2, moved / 2);
    if (c.moe.own_norms) {
      // Two norms of the own rows and the scale of one; three norms of the rows of the stream.
      const double normed = (3 * rows.routed + 3 * rows.stream) * h;
      work.numbers(2 * normed, 3 * normed);
    }
    if (c.moe.shared_expert_gate) {
      work.product(products, rows.all, h, 1);
      work.numbers(2 * rows.all * h, 3 * rows.all * h);
    }
    if (c.moe.has_shared_expert())
      add_mlp_work(work, c.moe.gate, rows.all, h, real(c.moe.shared_expert_intermediate_size) / real(of.tp));
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors& by) const override {
    const double choices = rows.routed * real(by.expert_tp) * real(c.moe.num_experts_per_tok);
    const std::int64_t outer = of.stored(choices * real(expert_width(c))),
                       inner = of.stored(choices * real(part_of_size(c.moe.intermediate_size, by.expert_tp))),
                       shared = c.moe.has_shared_expert()
                                    ? of.stored(rows.all * real(part_of_size(
                                                               c.moe.shared_expert_intermediate_size, by.tp)))
                                    : 0,
                       latent = of.stored(rows.routed * real(c.moe.latent_size)),
                       scores = of.wide(rows.routed * real(c.moe.n_routed_experts)) +
                                of.wide(rows.routed * real(c.moe.num_experts_per_tok));
    // For each choice the input row, the hidden row and the output row. Backward frees what the last
    // operation kept before it forms the gradient of its input, and has done the shared expert before the
    // others.
    const std::int64_t gated_rows = c.moe.shared_expert_gate ? of.stored(rows.all * real(c.hidden_size)) : 0;
    // Norms of the mixer's own keep what the shared expert and the routed ones return, what the router
    // reads, and a number of each row; what they return is computed again.
    const std::int64_t of_norms = c.moe.own_norms ? 2 * of.stored(rows.stream * real(c.hidden_size)) +
                                                        of.stored(rows.routed * real(c.hidden_size)) +
                                                        2 * of.wide(rows.routed) + 3 * of.wide(rows.stream)
                                                  : 0;
    const std::int64_t kept = 2 * outer + shared + latent + scores + gated_rows + of_norms;
    if (!c.moe.gate) return {kept + inner, std::max({outer, inner, shared}) + latent};
    // Gate and up projection are kept. What goes to the down projection is computed again in backward, while
    // the gradient that comes from there waits.
    return {kept + shared + 2 * inner, std::max({outer, 2 * inner, 2 * shared}) + latent};
  }
};

constinit const MoeBlock type;

}  // namespace

constinit const BlockKind moe_block(type);

void MoeConfig::visit(ConfigKeys& keys) {
  keys.key({"n_routed_experts", "num_local_experts"}, n_routed_experts);
  keys.key({"num_experts_per_tok"}, num_experts_per_tok);
  keys.key({"moe_intermediate_size"}, intermediate_size);
  keys.key({"moe_shared_expert_intermediate_size"}, shared_expert_intermediate_size);
  keys.nullable_key({"moe_latent_size"}, latent_size);
  keys.key({"n_group"}, n_group);
  keys.key({"topk_group"}, topk_group);
  keys.key({"norm_topk_prob"}, norm_topk_prob);
  keys.key({"routed_scaling_factor"}, routed_scaling_factor);
  keys.key({"mlp_bias"}, bias);
}

}  // namespace nemocube
