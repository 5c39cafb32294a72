#include "parallel/context_parallel/mamba_core.h"

#include <algorithm>
#include <array>

#include "model/blocks/block_type.h"
#include "ops/deal_columns/deal_columns.h"
#include "ops/select_rows/select_rows.h"
#include "ops/view/view.h"
#include "parallel/context_parallel/sequence_cut.h"
#include "parallel/mappings/mappings.h"

namespace nemocube {
namespace {

bool divides_mamba(std::int64_t heads, std::int64_t groups, std::int64_t cp) {
  return heads % cp == 0 && (groups % cp == 0 || cp % groups == 0);
}

/// "1, 2 or 4"
std::string sizes_that_work(std::int64_t heads, std::int64_t groups) {
  std::string text;
  for (std::int64_t cp = heads; cp >= 1; --cp)
    if (divides_mamba(heads, groups, cp))
      text = cat(cp, text.empty() ? "" : text.find(' ') == std::string::npos ? " or " : ", ", text);
  return text;
}

/// Part i, of `width`, of a dimension that starts at `begin`.
Range part(std::int64_t begin, std::int64_t i, std::int64_t width) {
  return {begin + i * width, begin + (i + 1) * width};
}

/// The channels x, B and C of the convolution that a rank computes.
std::array<Range, 3> conv_channels(const MambaCore& core, const MambaHeadCut& cut, std::int64_t rank) {
  const std::int64_t inner = core.inner(), group_width = cut.groups * core.scan.state_size;
  return {part(0, rank, cut.heads * core.scan.head_dim), part(inner, rank / cut.sharers, group_width),
          part(inner + core.group_width(), rank / cut.sharers, group_width)};
}

/// The core of a rank's heads.
MambaCore part_of(Context& ctx, const MambaCore& core, const MambaHeadCut& cut, std::int64_t rank) {
  const auto channels = conv_channels(core, cut, rank);
  const std::array heads{part(0, rank, cut.heads)};
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
ColumnDeal deal_of_inputs(const MambaCore& core, const MambaHeadCut& cut, std::int64_t ranks) {
  ColumnDeal deal;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const auto [x, b, c] = conv_channels(core, cut, r);
    deal.push_back({{0, x}, {0, b}, {0, c}, {1, part(0, r, cut.heads)}});
  }
  return deal;
}

ColumnDeal deal_of_outputs(const MambaCore& core, const MambaHeadCut& cut, std::int64_t ranks) {
  ColumnDeal deal;
  for (std::int64_t r = 0; r < ranks; ++r) deal.push_back({{0, part(0, r, cut.heads * core.scan.head_dim)}});
  return deal;
}

}  // namespace

MambaHeadCut cut_mamba_heads(std::int64_t heads, std::int64_t groups, std::int64_t cp) {
  require(cp >= 1 && divides_mamba(heads, groups, cp), "distributed.cp_size is ", cp, "; Mamba blocks have ",
          heads, " heads and ", groups,
          " groups of B and C on a tensor-parallel rank; want a divisor of the heads that divides the groups "
          "or is a "
          "multiple of them: ",
          sizes_that_work(heads, groups));
  return {heads / cp, std::max<std::int64_t>(1, groups / cp), std::max<std::int64_t>(1, cp / groups)};
}

void check_context_parallel(const ModelSetup& setup, std::int64_t tp, std::int64_t cp) {
  require(cp >= 1, "distributed.cp_size is ", cp, "; want at least 1");
  for (const BlockVariant& variant : setup.variants()) {
    const auto scan = variant.kind->cores(*variant.config).scan;
    if (!scan) continue;
    check_block(variant,
                [&] { cut_mamba_heads(scan->heads / tp, std::max<std::int64_t>(1, scan->groups / tp), cp); });
  }
}

MambaCoreRunner context_parallel_mamba(Communicator& cp) {
  return [&cp](Context& ctx, const MambaCore& core, const Var& xbc, const Var& dt,
               const Sequences& whole) -> Var {
    if (cp.size() == 1) return core(ctx, xbc, dt, whole);
    const MambaHeadCut cut = cut_mamba_heads(core.scan.heads, core.scan.groups, cp.size());
    const SequenceCut rows(whole, cp.size(), cp.rank());
    const std::vector<std::int64_t>& rows_of_ranks = rows.rows_of_ranks();
    const Device device = xbc.value().device();
    const std::vector<std::int64_t> own_rows(rows_of_ranks.size(), rows.local().tokens());

    const Var sent = deal_columns(ctx, {xbc, dt}, deal_of_inputs(core, cut, cp.size()));
    const Var received = exchange_rows(ctx, sent, own_rows, rows_of_ranks, cp);
    const MambaCore own = part_of(ctx, core, cut, cp.rank());
    const std::array widths{own.inner() + 2 * own.group_width(), own.scan.heads};
    const auto parts = split_last(ctx, permute(ctx, received, rows.to_natural_order(device)), widths);
    const Var y = own(ctx, parts[0], parts[1], whole);
    const Var returned =
        exchange_rows(ctx, permute(ctx, y, rows.to_rank_major_order(device)), rows_of_ranks, own_rows, cp);
    return collect_columns(ctx, returned, core.inner(), deal_of_outputs(core, cut, cp.size()));
  };
}

}  // namespace nemocube
