#pragma once
#include "parallel/schedule/actions.h"

namespace nemocube {

/// Whether a schedule can be executed, for schedules that come from a file:
///   - each stage is on one rank, and each rank has a stage
///   - each (stage, microbatch) has one F, and either one B, or one I and one W
///   - on its rank F comes before B and I, and I before W
///   - F, B, I and W of a stage each go through the microbatches in ascending order
///   - neither the actions nor the exchanges of transfers.h deadlock
/// Error naming the first action that breaks a rule, with rank and place in its list.
void check_schedule(const Schedule& schedule);

}  // namespace nemocube
