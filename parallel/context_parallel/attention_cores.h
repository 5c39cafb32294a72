#pragma once
#include "model/blocks/attention/attention.h"
#include "parallel/comm/communicator.h"

/// The operation `attention` (ops/attention/attention.h), computed together by the ranks of a
/// context-parallel group.
///
/// q, k and v are the local rows of each rank (parallel/context_parallel/sequence_cut.h), 0 rows included,
/// and so is the result; heads may be a tensor-parallel rank's. Formula, dtypes, variants and errors are as
/// for `attention`; query_scale has the local rows, slopes the local heads. Every rank of the group makes the
/// same calls in the same order and wants the same gradients; forward and backward passes communicate, and so
/// does a replay under activation checkpointing. Kept for backward: the local q, k, v, o and lse. In a group
/// of one rank, both cores are the operation itself.
///
/// o, dq, dk and dv are summed in f32 (f64 for f64) and rounded once; the order of sums is given below. The
/// same group gives the same bits every time; other numbers of ranks give other roundings.
///
/// Bytes sent, all c ranks together, with T rows of the microbatch, w = kv_heads head_dim, s bytes of an
/// element of k and a bytes of one in its accumulation dtype:
///     forward    2 (c - 1) T w s
///     backward   2 (c - 1) T w (s + a)
/// This is the minimum where every rank reads all keys. (With causal attention rank 0 needs only some.)
namespace nemocube {

/// Keys and values travel from each rank to the next, c - 1 steps; one block of them travels while the block
/// before is computed. In backward they travel again. The dk and dv of a block follow the block one step
/// behind, up to its owner.
///
/// Order on rank r: queries meet the keys of rank r, r - 1, ..., 0, c - 1, ..., r + 1. dk and dv
/// of rank r are sums of parts of ranks r + 1, r + 2, ..., c - 1, 0, ..., r - 1, r, in this
/// order. With a window or slopes the two chunks of a rank's keys come in two calls
/// (attention_pairs.h). All keys travel, with any window.
/// Source: "Ring Attention with Blockwise Transformers for Near-Infinite Context" (Liu et al., 2023); zig-zag
/// as in Megatron-LM, cp_comm_type p2p.
AttentionCore ring_attention(Communicator& cp);

/// All ranks gather all keys and values, in backward once more, and dk and dv are reduced and scattered. This
/// is simpler than the ring, takes more memory (all keys and values of the microbatch and, in backward, their
/// gradients), and hides no message behind computation.
///
/// Order: keys in the order of the sequence; dk and dv in the order of ranks.
/// Source: Megatron-LM, cp_comm_type all_gather.
AttentionCore all_gather_attention(Communicator& cp);

}  // namespace nemocube
