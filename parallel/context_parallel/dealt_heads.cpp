#include "parallel/context_parallel/dealt_heads.h"

#include <algorithm>

#include "model/blocks/block_type.h"
#include "ops/view/view.h"
#include "parallel/context_parallel/sequence_cut.h"
#include "parallel/mappings/mappings.h"

namespace nemocube {
namespace {

bool divides_scan(std::int64_t heads, std::int64_t groups, std::int64_t cp) {
  return heads % cp == 0 && (groups % cp == 0 || cp % groups == 0);
}

/// "1, 2 or 4"
std::string sizes_that_work(std::int64_t heads, std::int64_t groups) {
  std::string text;
  for (std::int64_t cp = heads; cp >= 1; --cp)
    if (divides_scan(heads, groups, cp))
      text = cat(cp, text.empty() ? "" : text.find(' ') == std::string::npos ? " or " : ", ", text);
  return text;
}

}  // namespace

ScanHeadCut cut_scan_heads(std::int64_t heads, std::int64_t groups, std::int64_t cp, const ScanWords& words) {
  const std::string_view groups_word = words.groups;
  require(cp >= 1 && divides_scan(heads, groups, cp), "distributed.cp_size is ", cp, "; ", words.blocks,
          " have ", heads, " ", words.heads, " and ", groups, " ", groups_word,
          " on a tensor-parallel rank; want a divisor of the ", words.heads, " that divides the ",
          groups_word.substr(0, groups_word.find(" of ")),
          " or is a multiple of them: ", sizes_that_work(heads, groups));
  return {heads / cp, std::max<std::int64_t>(1, groups / cp), std::max<std::int64_t>(1, cp / groups)};
}

void check_context_parallel(const ModelSetup& setup, std::int64_t tp, std::int64_t cp) {
  require(cp >= 1, "distributed.cp_size is ", cp, "; want at least 1");
  for (const BlockVariant& variant : setup.variants()) {
    const auto scan = variant.kind->cores(*variant.config).scan;
    if (!scan) continue;
    check_block(variant, [&] {
      cut_scan_heads(scan->heads / tp, std::max<std::int64_t>(1, scan->groups / tp), cp, scan->words);
    });
  }
}

Var run_dealt(Context& ctx, const DealtCore& core, const Sequences& whole, Communicator& cp) {
  const SequenceCut rows(whole, cp.size(), cp.rank());
  const std::vector<std::int64_t>& rows_of_ranks = rows.rows_of_ranks();
  const Device device = core.inputs.front().value().device();
  const std::vector<std::int64_t> own_rows(rows_of_ranks.size(), rows.local().tokens());

  const Var sent = deal_columns(ctx, core.inputs, core.input_deal);
  const Var received = exchange_rows(ctx, sent, own_rows, rows_of_ranks, cp);
  const auto parts = split_last(ctx, permute(ctx, received, rows.to_natural_order(device)), core.widths);
  const Var y = core.own(parts);
  const Var returned =
      exchange_rows(ctx, permute(ctx, y, rows.to_rank_major_order(device)), rows_of_ranks, own_rows, cp);
  return collect_columns(ctx, returned, core.output_width, core.output_deal);
}

}  // namespace nemocube
