#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "instructions/form.h"
#include "machine/lanes.h"

namespace emulator {

class Warp;

/// cp.async.mbarrier.arrive (PTX ISA 9.7.13.15.15), of which decode_cp has taken "async" and "mbarrier".
Execute decode_copy_arrival(Form& form);

/// complete-tx by a bulk copy of one lane: `bytes` fewer are awaited by the barrier object at the offset in shared memory, and
/// who waits for its phase sees what the lane did before.
void complete_transaction(Warp& warp, const Instruction& i, int lane, std::uint32_t barrier,
                          std::uint32_t bytes);

/// For messages: "a phase of parity 0, where 1 of 4 arrivals and 256 bytes are missing".
std::string describe_barrier_object(const std::byte* object);
/// "the end of a phase of parity 1": what a test_wait or try_wait with this parity or state waits for.
std::string describe_phase_wait(const Instruction& i, std::uint64_t awaited);

}  // namespace emulator
