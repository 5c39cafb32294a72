#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/shard.h"
#include "ops/permute/permute.h"
#include "ops/sequences.h"

/// How the ranks of a context-parallel group share the sequences of a microbatch.
///
/// Each sequence is cut into 2 ranks chunks as evenly as possible: the first length mod (2 ranks) chunks have
/// one row more, and chunks of a short sequence are empty. Rank r has chunks r and 2 ranks - 1 - r (zig-zag):
/// with causal attention all ranks then have the same work. The local rows of a rank are the sequences one
/// after another, each with its lower and then its upper chunk. The rows of all ranks, one rank after
/// another, are in rank-major order. Source: Megatron-LM, megatron/core/utils.py (get_batch_on_this_cp_rank);
/// no length needs padding here.
namespace nemocube {

/// Tables of a cut are made once for a microbatch and kept with its Sequences (derived()), so that a
/// SequenceCut costs nothing and each layer gets the same tables, forward and backward.
class SequenceCut {
 public:
  /// std::logic_error unless 0 <= rank < ranks.
  SequenceCut(const Sequences& whole, std::int64_t ranks, std::int64_t rank);

  std::int64_t ranks() const { return ranks_; }
  std::int64_t rank() const { return rank_; }
  const Sequences& whole() const { return whole_; }
  /// The lower and the upper chunk of a rank in sequence i: rows counted from the start of the sequence.
  std::array<Range, 2> chunks(std::int64_t i, std::int64_t rank) const;
  /// The local sequences of a rank; positions count in the whole sequences.
  const Sequences& local(std::int64_t rank) const;
  const Sequences& local() const { return local(rank_); }
  /// Local rows of each rank.
  const std::vector<std::int64_t>& rows_of_ranks() const;
  /// The row in the whole microbatch of each local row of a rank.
  std::vector<std::int64_t> rows(std::int64_t rank) const;
  /// For permute(): rows of all ranks in rank-major order to the order of the microbatch, and back.
  const Permutation& to_natural_order(Device device) const;
  const Permutation& to_rank_major_order(Device device) const;
  /// Entries of this rank: tokens or labels [T] i64, in host memory -> [local rows].
  /// Error unless there is an entry for each row.
  Tensor own(const Tensor& tokens) const;

 private:
  Sequences whole_;
  std::int64_t ranks_, rank_;
};

}  // namespace nemocube
