#pragma once
#include <string>

#include "parallel/comm/communicator.h"

/// The time of a start, by part. Each part has a zone (core/profile.h): "start/mpi", "start/devices" (with
/// NCCL), "start/groups", "start/weights" (made or loaded), "start/data", "start/checkpoint" (one to resume
/// from) and "start/first step".
namespace nemocube {

/// For the log, after the first step:
///     the start took 3.21 s: MPI 0.25, devices 0.61, groups 0.02, weights 1.41, data 0.20, first step 0.52
/// from the start of the process on. Parts that took less than 5 ms are left out. With several ranks each
/// time is the longest of any. All ranks of `group` together; null: one rank.
std::string start_text(Communicator* group);

}  // namespace nemocube
