#include "parallel/context_parallel/delta_net_core.h"

#include <array>

#include "ops/select_rows/select_rows.h"
#include "parallel/context_parallel/dealt_heads.h"

namespace nemocube {
namespace {

/// The channels q, k and v of the convolution that a rank computes.
std::array<Range, 3> conv_channels(const DeltaNetCore& core, const ScanHeadCut& cut, std::int64_t rank) {
  const std::int64_t group = rank / cut.sharers, keys = cut.groups * core.rule.key_dim;
  return {part_of_dimension(0, group, keys), part_of_dimension(core.key_width(), group, keys),
          part_of_dimension(2 * core.key_width(), rank, cut.heads * core.rule.value_dim)};
}

/// The core of a rank's heads.
DeltaNetCore part_of(Context& ctx, const DeltaNetCore& core, const ScanHeadCut& cut, std::int64_t rank) {
  const std::array heads{part_of_dimension(0, rank, cut.heads)};
  DeltaNetCore own = core;
  own.rule.value_heads = cut.heads;
  own.rule.key_heads = cut.groups;
  own.conv_weight = select_rows(ctx, core.conv_weight, conv_channels(core, cut, rank));
  own.a_log = select_rows(ctx, core.a_log, heads);
  own.dt_bias = select_rows(ctx, core.dt_bias, heads);
  return own;
}

}  // namespace

DeltaNetCoreRunner context_parallel_delta_net(Communicator& cp) {
  return [&cp](Context& ctx, const DeltaNetCore& core, const Var& qkv, const Var& a, const Var& b,
               const Sequences& whole) -> Var {
    if (cp.size() == 1) return core(ctx, qkv, a, b, whole);
    const ScanHeadCut cut =
        cut_scan_heads(core.rule.value_heads, core.rule.key_heads, cp.size(), delta_net_words);
    const DeltaNetCore own = part_of(ctx, core, cut, cp.rank());
    DealtCore dealt{.inputs = {qkv, a, b},
                    .input_deal = {},
                    .widths = {2 * own.key_width() + own.value_width(), cut.heads, cut.heads},
                    .output_deal = {},
                    .output_width = core.value_width(),
                    .own = [&](std::span<const Var> in) { return own(ctx, in[0], in[1], in[2], whole); }};
    for (std::int64_t r = 0; r < cp.size(); ++r) {
      const auto [q, k, v] = conv_channels(core, cut, r);
      const Range heads = part_of_dimension(0, r, cut.heads);
      dealt.input_deal.push_back({{0, q}, {0, k}, {0, v}, {1, heads}, {2, heads}});
      dealt.output_deal.push_back({{0, part_of_dimension(0, r, cut.heads * core.rule.value_dim)}});
    }
    return run_dealt(ctx, dealt, whole, cp);
  };
}

}  // namespace nemocube
