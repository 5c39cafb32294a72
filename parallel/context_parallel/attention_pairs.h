#pragma once
#include <vector>

#include "ops/attention/partial_attention.h"
#include "parallel/context_parallel/sequence_cut.h"

/// Which queries of a rank meet which keys. Each visible pair of a query and a key occurs once.
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
const AttentionStep& ring_step(const SequenceCut& cut, std::int64_t owner, bool causal, Device device);

/// The local queries against the keys of whole sequences: with causal attention one step for the lower chunks
/// and one for the upper ones, since their keys overlap.
const std::vector<AttentionStep>& steps_over_all_keys(const SequenceCut& cut, bool causal, Device device);

}  // namespace nemocube
