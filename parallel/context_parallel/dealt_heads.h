#pragma once
#include <functional>
#include <span>
#include <vector>

#include "model/blocks/scan_words.h"
#include "model/config.h"
#include "ops/deal_columns/deal_columns.h"
#include "ops/sequences.h"
#include "parallel/comm/communicator.h"

/// Recurrences over the ranks of a context-parallel group. A recurrence needs whole sequences, so each rank
/// computes the core of a part of the heads for all rows.
namespace nemocube {

/// The part of a scan that one rank computes. Heads of a rank are consecutive. Where a group serves the heads
/// of several ranks, each of these `sharers` has its own copy.
struct ScanHeadCut {
  std::int64_t heads = 0, groups = 0;  ///< of a rank
  std::int64_t sharers = 1;            ///< neighbouring ranks with the same group
};
/// The cut over cp ranks of a scan with these heads and groups (of one tensor-parallel rank). Error unless cp
/// divides the heads, and divides the groups or is a multiple of them; the message names the sizes that work.
ScanHeadCut cut_scan_heads(std::int64_t heads, std::int64_t groups, std::int64_t cp, const ScanWords& words);

/// Error unless the model can run with these sizes of tensor and context parallelism; see cut_scan_heads.
/// Attention and the other blocks take any size.
/// pre: tp divides the heads of each scan, and divides the groups or is a multiple of them
void check_context_parallel(const ModelSetup& setup, std::int64_t tp, std::int64_t cp);

/// Part i, of `width`, of a dimension that starts at `begin`.
inline Range part_of_dimension(std::int64_t begin, std::int64_t i, std::int64_t width) {
  return {begin + i * width, begin + (i + 1) * width};
}

/// A core, and how its heads are dealt to the ranks.
struct DealtCore {
  std::vector<Var> inputs;           ///< the rank's rows
  ColumnDeal input_deal;             ///< of the columns of the inputs
  std::vector<std::int64_t> widths;  ///< of the inputs that the rank computes with
  ColumnDeal output_deal;            ///< of the columns of the result
  std::int64_t output_width;
  /// The core of the rank's heads, for all rows of all sequences in their order.
  std::function<Var(std::span<const Var> inputs)> own;
};
/// The rank's rows of the core's result (parallel/context_parallel/sequence_cut.h), 0 rows included: each
/// rank sends each other one the input columns of its heads, for all local rows, in one message; the rows
/// are put in the order of the sequences; the core; the rows of the result go back. Gradients of a column
/// that is dealt to several ranks are added in the order of ranks, in f32 (f64 for f64).
///
/// Every rank of the group makes the same calls in the same order and wants the same gradients. pre: the
/// group has several ranks
Var run_dealt(Context& ctx, const DealtCore& core, const Sequences& whole, Communicator& cp);

}  // namespace nemocube
