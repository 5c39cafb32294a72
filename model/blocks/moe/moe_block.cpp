#include "model/blocks/moe/moe_block.h"

#include <algorithm>

#include "model/blocks/block_type.h"
#include "model/blocks/mlp/mlp_work.h"
#include "model/blocks/moe/moe.h"
#include "model/config.h"
#include "model/config_checks.h"

namespace nemocube {
namespace {

using C = BlockConfig;

constexpr CutRule own_rows{.style = TensorStyle::sequence_parallel, .always_own_rows = true};
constexpr CutRule of_router{
    .module = "gate", .style = TensorStyle::sequence_parallel, .always_own_rows = true};
constexpr CutRule experts_in{.style = TensorStyle::expert_colwise};
constexpr CutRule experts_out{.style = TensorStyle::expert_rowwise};

bool has_latent(const C& c) { return c.moe_latent_size > 0; }

const BlockTensor tensor_table[] = {
    {.name = "gate.weight",
     .shape = [](const C& c) { return shape_of(c.n_routed_experts, c.hidden_size); },
     .law = InitialLaw::input,
     .cut = of_router,
     .keep_f32 = true,
     .adaptable = false},
    {.name = "gate.e_score_correction_bias",
     .shape = [](const C& c) { return shape_of(c.n_routed_experts); },
     .law = InitialLaw::zero,
     .cut = of_router,
     .keep_f32 = true,
     .buffer = true},
    {"fc1_latent_proj.weight",
     [](const C& c) { return shape_if(has_latent(c), c.expert_width(), c.hidden_size); }, InitialLaw::input,
     own_rows},
    {"fc1_latent_proj.bias",
     [](const C& c) { return shape_if(has_latent(c) && c.mlp_bias, c.expert_width()); }, InitialLaw::zero,
     own_rows},
    {"fc2_latent_proj.weight",
     [](const C& c) { return shape_if(has_latent(c), c.hidden_size, c.expert_width()); }, InitialLaw::output,
     own_rows},
    {"fc2_latent_proj.bias", [](const C& c) { return shape_if(has_latent(c) && c.mlp_bias, c.hidden_size); },
     InitialLaw::zero, own_rows},
    {.name = "experts.up_proj",
     .shape =
         [](const C& c) { return shape_of(c.n_routed_experts, c.moe_intermediate_size, c.expert_width()); },
     .law = InitialLaw::input,
     .cut = experts_in,
     .experts = true},
    {.name = "experts.down_proj",
     .shape =
         [](const C& c) { return shape_of(c.n_routed_experts, c.expert_width(), c.moe_intermediate_size); },
     .law = InitialLaw::output,
     .cut = experts_out,
     .experts = true},
    {"shared_experts.up_proj.weight",
     [](const C& c) { return shape_of(c.moe_shared_expert_intermediate_size, c.hidden_size); },
     InitialLaw::input, cut_by_columns},
    {"shared_experts.up_proj.bias",
     [](const C& c) { return shape_if(c.mlp_bias, c.moe_shared_expert_intermediate_size); }, InitialLaw::zero,
     cut_by_columns},
    {"shared_experts.down_proj.weight",
     [](const C& c) { return shape_of(c.hidden_size, c.moe_shared_expert_intermediate_size); },
     InitialLaw::output, cut_by_rows},
    {"shared_experts.down_proj.bias", [](const C& c) { return shape_if(c.mlp_bias, c.hidden_size); },
     InitialLaw::zero, cut_by_rows_bias},
};

class MoeBlock final : public BlockType {
 public:
  constexpr MoeBlock() : BlockType({'E', "moe", nullptr, "a mixture-of-experts block", 3}) {}

  void validate(const C& c) const override {
    check_size("n_routed_experts", c.n_routed_experts);
    check_size("num_experts_per_tok", c.num_experts_per_tok);
    check_size("moe_intermediate_size", c.moe_intermediate_size);
    check_size("moe_shared_expert_intermediate_size", c.moe_shared_expert_intermediate_size);
    check_size("moe_latent_size", c.moe_latent_size, 0);
    check_width("n_routed_experts x moe_intermediate_size", c.n_routed_experts, c.moe_intermediate_size);
    check_size("n_group", c.n_group);
    check_size("topk_group", c.topk_group);
    check_multiple("n_routed_experts", c.n_routed_experts, "n_group", c.n_group);
    require(c.topk_group <= c.n_group, "topk_group: want at most n_group (", c.n_group, "), got ",
            c.topk_group);
    const std::int64_t group = c.n_routed_experts / c.n_group;
    // The score of a group is the sum of its two best experts.
    require(c.n_group == 1 || group >= 2, "n_group: want at least two experts in a group, got ", c.n_group,
            " groups of ", group);
    require(c.num_experts_per_tok <= c.topk_group * group, "num_experts_per_tok: want at most ",
            c.topk_group * group, " (topk_group ", c.topk_group, " x ", group, " experts in a group), got ",
            c.num_experts_per_tok);
    check_range("routed_scaling_factor", c.routed_scaling_factor, -largest_number, largest_number);
  }

  std::span<const BlockTensor> tensors() const override { return tensor_table; }
  std::unique_ptr<Mixer> make(const MixerSources& sources, const std::string& mixer) const override {
    return std::make_unique<MoeMixer>(sources, mixer);
  }

  std::string_view entry() const override { return "shared_experts.up_proj"; }
  std::vector<Division> divisions(const C& c) const override {
    return {{"moe_shared_expert_intermediate_size", c.moe_shared_expert_intermediate_size, entry()}};
  }
  BlockCores cores(const C& c) const override {
    return {.experts = BlockCores::Experts{c.n_routed_experts, c.num_experts_per_tok, c.expert_width()}};
  }

  void add_work(BlockWork& work, const C& c, const BlockRows& rows, const BlockDivisors& of) const override {
    using enum BlockWork::Part;
    const double h = real(c.hidden_size), in = real(c.expert_width()), share = real(of.expert_tp),
                 choices = real(c.num_experts_per_tok), width = real(c.moe_intermediate_size) / share,
                 arriving = rows.routed * choices * share, own = real(c.n_routed_experts) / real(of.ep);
    work.product(products, rows.routed, h, real(c.n_routed_experts));
    if (has_latent(c)) {
      work.product(products, rows.routed, h, in);
      work.product(products, rows.routed, in, h);
    }
    work.product(experts, arriving, in, width, own);
    work.product(experts, arriving, width, in, own);
    add_activation_work(work, arriving * width);
    const double moved = (rows.routed + rows.routed * choices) * in * 4;  // to the experts' rows and back
    work.numbers(moved / 2, moved / 2);
    add_mlp_work(work, rows.all, h, real(c.moe_shared_expert_intermediate_size) / real(of.tp));
  }
  double automodel_flops(const C& c, double) const override {
    const double h = real(c.hidden_size);
    return 12 * real(c.num_experts_per_tok) * real(c.expert_width()) * real(c.moe_intermediate_size) +
           12 * h * real(c.moe_shared_expert_intermediate_size) + 6 * h * real(c.n_routed_experts) +
           12 * h * real(c.moe_latent_size);
  }

  BlockMemory memory(const C& c, const BlockRows& rows, const TensorBytes& of,
                     const BlockDivisors& by) const override {
    const double choices = rows.routed * real(by.expert_tp) * real(c.num_experts_per_tok);
    const std::int64_t outer = of.stored(choices * real(c.expert_width())),
                       inner = of.stored(choices * real(part_of_size(c.moe_intermediate_size, by.expert_tp))),
                       shared = of.stored(rows.all *
                                          real(part_of_size(c.moe_shared_expert_intermediate_size, by.tp))),
                       latent = of.stored(rows.routed * real(c.moe_latent_size)),
                       scores = of.wide(rows.routed * real(c.n_routed_experts)) +
                                of.wide(rows.routed * real(c.num_experts_per_tok));
    // For each choice the input row, the hidden row and the output row. Backward frees what the last operation
    // kept before it forms the gradient of its input, and has done the shared expert before the others.
    return {2 * outer + inner + shared + latent + scores, std::max({outer, inner, shared}) + latent};
  }
};

constinit const MoeBlock type;

}  // namespace

constinit const BlockKind moe_block(type);

}  // namespace nemocube
