#include "parallel/context_parallel/mamba_core.h"

#include <array>

#include "ops/select_rows/select_rows.h"
#include "parallel/context_parallel/dealt_heads.h"

namespace nemocube {
namespace {

/// The channels x, B and C of the convolution that a rank computes.
std::array<Range, 3> conv_channels(const MambaCore& core, const ScanHeadCut& cut, std::int64_t rank) {
  const std::int64_t inner = core.inner(), group_width = cut.groups * core.scan.state_size;
  return {part_of_dimension(0, rank, cut.heads * core.scan.head_dim),
          part_of_dimension(inner, rank / cut.sharers, group_width),
          part_of_dimension(inner + core.group_width(), rank / cut.sharers, group_width)};
}

/// The core of a rank's heads.
MambaCore part_of(Context& ctx, const MambaCore& core, const ScanHeadCut& cut, std::int64_t rank) {
  const auto channels = conv_channels(core, cut, rank);
  const std::array heads{part_of_dimension(0, rank, cut.heads)};
  MambaCore own = core;
  own.scan.heads = cut.heads;
  own.scan.groups = cut.groups;
  own.conv_weight = select_rows(ctx, core.conv_weight, channels);
  if (core.conv_bias.defined()) own.conv_bias = select_rows(ctx, core.conv_bias, channels);
  own.a_log = select_rows(ctx, core.a_log, heads);
  own.d = select_rows(ctx, core.d, heads);
  own.dt_bias = select_rows(ctx, core.dt_bias, heads);
  return own;
}

/// What each rank gets of xBC, matrix 0, and dt, matrix 1.
ColumnDeal deal_of_inputs(const MambaCore& core, const ScanHeadCut& cut, std::int64_t ranks) {
  ColumnDeal deal;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const auto [x, b, c] = conv_channels(core, cut, r);
    deal.push_back({{0, x}, {0, b}, {0, c}, {1, part_of_dimension(0, r, cut.heads)}});
  }
  return deal;
}

ColumnDeal deal_of_outputs(const MambaCore& core, const ScanHeadCut& cut, std::int64_t ranks) {
  ColumnDeal deal;
  for (std::int64_t r = 0; r < ranks; ++r)
    deal.push_back({{0, part_of_dimension(0, r, cut.heads * core.scan.head_dim)}});
  return deal;
}

}  // namespace

MambaCoreRunner context_parallel_mamba(Communicator& cp) {
  return [&cp](Context& ctx, const MambaCore& core, const Var& xbc, const Var& dt,
               const Sequences& whole) -> Var {
    if (cp.size() == 1) return core(ctx, xbc, dt, whole);
    const ScanHeadCut cut = cut_scan_heads(core.scan.heads, core.scan.groups, cp.size(), mamba_words);
    const MambaCore own = part_of(ctx, core, cut, cp.rank());
    return run_dealt(ctx,
                     {.inputs = {xbc, dt},
                      .input_deal = deal_of_inputs(core, cut, cp.size()),
                      .widths = {own.inner() + 2 * own.group_width(), own.scan.heads},
                      .output_deal = deal_of_outputs(core, cut, cp.size()),
                      .output_width = core.inner(),
                      .own = [&](std::span<const Var> in) { return own(ctx, in[0], in[1], whole); }},
                     whole, cp);
  };
}

}  // namespace nemocube
