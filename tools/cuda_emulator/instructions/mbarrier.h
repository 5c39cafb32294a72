#pragma once
#include <cstdint>

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

}  // namespace emulator
