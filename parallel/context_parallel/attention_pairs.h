#pragma once
#include <vector>

#include "ops/attention/partial_attention.h"
#include "parallel/context_parallel/sequence_cut.h"

/// Which queries of a rank meet which keys. Each visible pair of a query and a key occurs once.
///
/// Where scores depend on positions (window or slopes of the options), pairs are of one chunk of queries and
/// one range of keys each, with their distance in the sequence; pairs outside of the window are left out, and
/// so are keys before it. Otherwise a rank's two chunks are together where that is possible.
namespace nemocube {

/// One call of partial_attention. Made once for a microbatch and kept with its Sequences.
struct AttentionStep {
  AttentionPairs pairs;
  bool causal = false;
};

/// The local queries of the cut's rank against the local keys of rank `owner`. With causal attention, its own
/// keys are in the order of the sequence as the queries are. Of an earlier rank all queries see the lower
/// chunk and none the upper one; both chunks of a later rank are seen by the queries of the upper chunk
/// alone.
///
/// One step, or with positions up to two: lower with lower chunks and upper with upper ones, then crosswise.
/// The first step of the rank's own keys has all its queries.
const std::vector<AttentionStep>& ring_steps(const SequenceCut& cut, std::int64_t owner,
                                             const AttentionOptions& options, Device device);

/// The local queries against the keys of whole sequences: with causal attention or positions one step for the
/// lower chunks and one for the upper ones, since their keys overlap.
const std::vector<AttentionStep>& steps_over_all_keys(const SequenceCut& cut, const AttentionOptions& options,
                                                      Device device);

}  // namespace nemocube
