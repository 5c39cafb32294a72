#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "parallel/schedule/actions.h"

/// Pipeline schedules: which rank does which action in which order. A schedule is plain lists: the training
/// step executes them, simulate.h times them, and csv.h prints them.
///
/// p ranks, V chunks (stages) for each rank, M microbatches. Counted with F = 1 and B = 2 (I = W = 1) and
/// free transfers, a rank has 3 V M units of work, and the step takes these units plus the bubble:
///
/// kind                    | V   | bubble                | live forwards, most of any rank
/// ------------------------|-----|-----------------------|--------------------------------
/// gpipe                   | 1   | 3 (p - 1)             | M
/// one_f_one_b             | 1   | 3 (p - 1)             | min(p, M)
/// interleaved_1f1b        | > 1 | 3 (p - 1) for M >= p  | min((V - 1) N + 2 p - 1, V M)
/// interleaved_zero_bubble | > 1 | p - 1 for M >= p      | min((V - 1) N + p, V M)
/// zbv                     | 2   | p - 1 for M >= 2 p    | min(2 p, 2 M)
///
/// With fewer microbatches than the table says the bubble is larger. N is the size of a round, see
/// make_schedule. The same model in V chunks has stages a V-th as long, so V chunks divide the bubble by V.
namespace nemocube {

enum class ScheduleKind : std::uint8_t { gpipe, one_f_one_b, interleaved_1f1b, interleaved_zero_bubble, zbv };

/// gpipe, 1f1b, interleaved1f1b, interleavedzerobubble, zbv, or the name of PyTorch's class for the same
/// (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble,
/// ScheduleZBVZeroBubble); upper and lower case are the same. Error listing the names for any other.
ScheduleKind parse_schedule_kind(std::string_view name);
std::string_view name_of(ScheduleKind kind);  ///< "gpipe", "1f1b", ...
bool has_one_chunk(ScheduleKind kind);        ///< gpipe and 1f1b: each rank holds one stage

enum class StagePlacement : std::uint8_t {
  loop,  ///< rank q holds stages q, q + p, q + 2 p, ...
  v,     ///< rank q holds stages q and 2 p - 1 - q, so rank 0 holds the first and the last one
};
StagePlacement placement_of(ScheduleKind kind);  ///< v for zbv, loop for the others

/// The stages of rank `rank`, 0 <= rank < pp. Error unless pp and stages are at least 1, stages is a multiple
/// of pp, and for v is 2 pp.
std::vector<std::int64_t> stages_of_rank(StagePlacement placement, std::int64_t rank, std::int64_t pp,
                                         std::int64_t stages);

/// Error unless ranks may hold `chunks` stages each: exactly 1 with gpipe and 1f1b, exactly 2 with zbv, 2 or
/// more with the interleaved kinds.
void check_chunks(ScheduleKind kind, std::int64_t chunks);

/// The lists of all ranks, for pp ranks of `chunks` stages each and any number of microbatches from 1.
///
/// Every (stage, microbatch) has one F, and one B (one I and one W with the zero-bubble kinds). F, B, I and W
/// of a stage each go through the microbatches in ascending order. check_schedule (check.h) holds for every
/// list.
///
/// The interleaved kinds visit a chunk with one round of microbatches before they go on to the next chunk.
/// There are max(1, M div p) rounds. Their sizes differ by at most one and the larger ones come first; N is
/// the largest. Where PyTorch accepts M (M mod rounds = 0), every list is PyTorch's.
///
/// Sources: Megatron-LM (1F1B, interleaved 1F1B), PyTorch torch.distributed.pipelining (all). Error for
/// chunks as check_chunks, for sizes below 1, and for more than 2^24 forwards in all.
Schedule make_schedule(ScheduleKind kind, std::int64_t pp, std::int64_t chunks, std::int64_t microbatches);

}  // namespace nemocube
