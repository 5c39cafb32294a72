#pragma once
#include <vector>

#include "ops/attention/partial_attention.h"
#include "parallel/context_parallel/sequence_cut.h"

/// Which queries of a rank meet which keys. Each visible pair of a query and a key occurs once.
///
/// Where scores depend on positions (window or slopes of the options), a call has one chunk of queries and
/// one range of keys, with their distance in the sequence. Pairs outside of the window are left out, and so
/// are keys before the window. Otherwise one call has both chunks of a rank where possible.
namespace nemocube {

/// One call of partial_attention. Made once for a microbatch and kept with its Sequences.
struct AttentionStep {
  AttentionPairs pairs;
  bool causal = false;
};

/// The local queries of the cut's rank against the local keys of rank `owner`. With causal
/// attention, the rank's own keys are in the order of the sequence as the queries are. All queries
/// see the lower chunk of an earlier rank and none its upper chunk. Only queries of the upper chunk
/// see a later rank's chunks, and see both.
///
/// Returns one step, or with positions up to two: lower with lower chunks and upper with upper ones, then
/// crosswise. The first step of the rank's own keys has all queries of the rank.
const std::vector<AttentionStep>& ring_steps(const SequenceCut& cut, std::int64_t owner,
                                             const AttentionOptions& options, Device device);

/// The local queries against the keys of whole sequences: with causal attention or positions one step for the
/// lower chunks and one for the upper ones, since their keys overlap.
const std::vector<AttentionStep>& steps_over_all_keys(const SequenceCut& cut, const AttentionOptions& options,
                                                      Device device);

}  // namespace nemocube
