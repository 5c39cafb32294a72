#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "core/cuda/module.h"
#include "parallel/comm/collective.h"

/// NCCL, as the program sees it. The functions are in the CUDA module (core/cuda/module.h) where NCCL's
/// header was found when the module was built; the first of them loads libnccl.so.2. nccl.cu is the one file
/// that knows NCCL.
///
/// Communicators are not blocking: calls return at once, and ready() says when their work on the host has
/// ended. All functions throw Error with NCCL's words where a call fails.
/// Source: NVIDIA, NCCL User Guide 2.28, "Creating a Communicator", "Group Calls", "Fault Tolerance".
namespace nemocube::nccl {

/// An id by which the ranks of a job find each other. Rank 0 makes it and sends it to all others.
using UniqueId = std::array<std::byte, 128>;
/// A communicator of NCCL. Its last owner ends it, together with the other ranks; while an exception unwinds
/// the stack, and after an error, it stays until the process ends.
using Handle = std::shared_ptr<void>;

/// Version of the library: "NCCL 2.28.3". Error where it cannot be loaded.
inline const cuda::Function<std::string()> library("comm/nccl_library");
inline const cuda::Function<UniqueId()> unique_id("comm/nccl_unique_id");

/// Begins to make the communicator of all ranks, on the device of this process.
inline const cuda::Function<Handle(const UniqueId& id, int rank, int size)> begin_world(
    "comm/nccl_begin_world");
/// All ranks of `parent` call this while none of its operations is under way. Begins to divide them: ranks of
/// one colour form a group, ordered by key. NCCL writes into the result until `parent` is ready. For colour <
/// 0 the result is of no use. `name` is the communicator's for NCCL's log and for profilers.
inline const cuda::Function<Handle(const Handle& parent, int colour, int key, const std::string& name)>
    begin_split("comm/nccl_begin_split");
/// Whether NCCL's work on the host has ended: the communicator can be used,
/// and queued operations are in the stream.
inline const cuda::Function<bool(const Handle& group)> ready("comm/nccl_ready");
/// The error that NCCL has found since, on this rank or another; empty without one. Any thread may ask.
inline const cuda::Function<std::string(const Handle& group)> problem("comm/nccl_problem");

/// Queues a collective of tensors of the device on the stream of the thread (OnStream), in one group of NCCL
/// calls. `messages`: grouped_messages() of the call.
inline const cuda::Function<void(const Handle& group, const Collective& call,
                                 const GroupedMessages& messages)>
    queue("comm/nccl_queue");

}  // namespace nemocube::nccl
