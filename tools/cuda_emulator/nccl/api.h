#pragma once
#include <nccl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nccl/task.h"

/// What ncclComm_t points to.
struct ncclComm {
  std::shared_ptr<emulator::nccl::Communicator> communicator;
};

namespace emulator::nccl {

/// Message of the last call of this thread that failed, and for ncclGetLastError(NULL).
void set_last_error(const std::string& message);
const char* last_error();

/// The body of an API function: what it throws becomes the result.
ncclResult_t api(const char* function, const std::function<void()>& body);

/// The communicator behind a handle; throws for NULL and for handles that are not in use.
Communicator& checked(ncclComm_t handle);
/// The same for calls that need all ranks: throws while the communicator is not ready, and its error if it has one.
Communicator& usable(ncclComm_t handle);

/// Inside of ncclGroupStart and ncclGroupEnd calls are kept until the end; outside, each is a group of its own.
void add(Communicator& communicator, Request request);
/// Goes on with a communicator that is being made: at once, or at the end of the group. `done` is told the result.
ncclResult_t add_creation(const std::shared_ptr<Communicator>& communicator);

}  // namespace emulator::nccl
