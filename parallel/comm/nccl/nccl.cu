#include "parallel/comm/nccl/nccl.h"

#include <nccl.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <utility>

#include "core/cuda/device.cuh"
#include "core/cuda/shared_library.cuh"

namespace nemocube::nccl {
namespace {

/// The functions of libnccl.so.2.
struct Library {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&::ncclCommSplit) split = nullptr;
  decltype(&::ncclCommGetAsyncError) async_error = nullptr;
  decltype(&::ncclCommFinalize) finalize = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclReduce) reduce = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
};

Library load() {
  // Connections and their memory are made with a communicator and not at its first operation, when tensors
  // may fill the device.
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  const cuda::SharedLibrary file("libnccl.so.2", "NCCL",
                                 "by which ranks on several CUDA devices exchange data");
  Library l;
  file.find("ncclGetVersion", l.get_version);
  file.find("ncclGetErrorString", l.error_string);
  file.find("ncclGetLastError", l.last_error);
  file.find("ncclGetUniqueId", l.get_unique_id);
  file.find("ncclCommInitRankConfig", l.init_rank);
  file.find("ncclCommSplit", l.split);
  file.find("ncclCommGetAsyncError", l.async_error);
  file.find("ncclCommFinalize", l.finalize);
  file.find("ncclCommDestroy", l.destroy);
  file.find("ncclGroupStart", l.group_start);
  file.find("ncclGroupEnd", l.group_end);
  file.find("ncclAllReduce", l.all_reduce);
  file.find("ncclReduce", l.reduce);
  file.find("ncclReduceScatter", l.reduce_scatter);
  file.find("ncclAllGather", l.all_gather);
  file.find("ncclBroadcast", l.broadcast);
  file.find("ncclSend", l.send);
  file.find("ncclRecv", l.receive);
  return l;
}

const Library& nccl() {
  static const Library l = load();
  return l;
}

std::string text_of(ncclResult_t result) {
  const char* const detail = nccl().last_error(nullptr);
  return cat(nccl().error_string(result), detail && *detail ? cat(" (", detail, ")") : "");
}

void check(ncclResult_t result, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress) fail("NCCL: ", call, ": ", text_of(result));
}

/// A communicator of NCCL. One thread uses it, and the one that watches asks for its state: NCCL wants one at
/// a time.
struct Communicator {
  std::mutex mutex;
  ncclComm_t comm = nullptr;  // null on a rank that is in no group of a split

  ncclResult_t state() {
    const std::lock_guard lock(mutex);
    ncclResult_t found = ncclSuccess;
    if (comm) check(nccl().async_error(comm, &found), "ncclCommGetAsyncError");
    return found;
  }
};

Communicator& of(const Handle& group) { return *static_cast<Communicator*>(group.get()); }

// After an error, and while an exception unwinds the stack, the communicator stays: NCCL ends it only
// together with the other ranks, which may not come, and its threads may still write what they began. The
// process is about to end.
void end(Communicator* group) {
  if (std::uncaught_exceptions() > 0) return;
  if (group->comm) {
    ncclResult_t state = nccl().finalize(group->comm);
    while (state == ncclInProgress || state == ncclSuccess) {
      if (nccl().async_error(group->comm, &state) != ncclSuccess) return;
      if (state == ncclSuccess) break;
      ::sched_yield();
    }
    if (state != ncclSuccess) return;
    nccl().destroy(group->comm);
  }
  delete group;
}

std::shared_ptr<Communicator> new_communicator() { return {new Communicator, end}; }

ncclConfig_t not_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

std::string version() {
  int number = 0;
  check(nccl().get_version(&number), "ncclGetVersion");
  return cat("NCCL ", number / 10000, ".", number / 100 % 100, ".", number % 100);
}

UniqueId new_id() {
  ncclUniqueId id;
  check(nccl().get_unique_id(&id), "ncclGetUniqueId");
  UniqueId bytes{};
  static_assert(sizeof id.internal == sizeof bytes);
  std::memcpy(bytes.data(), id.internal, sizeof bytes);
  return bytes;
}

Handle make_world(const UniqueId& bytes, int rank, int size) {
  ncclUniqueId id;
  std::memcpy(id.internal, bytes.data(), sizeof bytes);
  cuda::stream();  // chooses the device, which the communicator belongs to
  ncclConfig_t config = not_blocking();
  config.commName = "world";
  const auto made = new_communicator();
  check(nccl().init_rank(&made->comm, size, id, rank, &config), "ncclCommInitRankConfig");
  return made;
}

Handle divide(const Handle& parent, int colour, int key, const std::string& name) {
  cuda::stream();
  ncclConfig_t config = not_blocking();
  config.commName = name.c_str();
  const auto made = new_communicator();
  const std::lock_guard lock(of(parent).mutex);
  check(nccl().split(of(parent).comm, colour < 0 ? NCCL_SPLIT_NOCOLOR : colour, key, &made->comm, &config),
        "ncclCommSplit");
  return made;
}

bool is_ready(const Handle& group) {
  const ncclResult_t state = of(group).state();
  check(state, "ncclCommGetAsyncError");
  return state == ncclSuccess;
}

std::string find_problem(const Handle& group) {
  const ncclResult_t state = of(group).state();
  return state == ncclSuccess || state == ncclInProgress ? "" : cat("NCCL: ", text_of(state));
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
      return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return ncclSum;
    case Reduction::max:
      return ncclMax;
    case Reduction::min:
      return ncclMin;
  }
  return ncclSum;
}

bool all_equal(const std::vector<std::int64_t>& counts) {
  return std::ranges::all_of(counts, [&](std::int64_t n) { return n == counts.front(); });
}

void queue_reduce_scatter(ncclComm_t comm, const Collective& call, cudaStream_t stream) {
  const auto type = type_of(call.dtype);
  const auto operation = operation_of(call.reduction);
  if (all_equal(call.in_counts)) {
    check(nccl().reduce_scatter(call.in.address(), call.out.address(),
                                static_cast<std::size_t>(call.out.numel()), type, operation, comm, stream),
          "ncclReduceScatter");
    return;
  }
  const auto* part = static_cast<const std::byte*>(call.in.address());
  for (std::size_t r = 0; r < call.in_counts.size(); ++r) {
    const std::int64_t count = call.in_counts[r];
    if (count > 0)
      check(nccl().reduce(part, call.out.address(), static_cast<std::size_t>(count), type, operation,
                          static_cast<int>(r), comm, stream),
            "ncclReduce");
    part += count * size_of(call.dtype);
  }
}

// Both ends of a message know its size, so that both leave out an empty one. In an all_gather the part of
// this rank may be in its place already.
void queue_messages(ncclComm_t comm, const Collective& call, const GroupedMessages& messages,
                    cudaStream_t stream) {
  const bool own_is_there =
      call.operation == Operation::all_gather &&
      messages.sends.front().tensor.address() == messages.receives.front().tensor.address();
  const std::size_t first = own_is_there ? 1 : 0;
  for (const Send& s : std::span(messages.sends).subspan(first))
    if (s.tensor.numel() > 0)
      check(nccl().send(s.tensor.address(), static_cast<std::size_t>(s.tensor.bytes()), ncclUint8, s.to, comm,
                        stream),
            "ncclSend");
  for (const Receive& r : std::span(messages.receives).subspan(first))
    if (r.tensor.numel() > 0)
      check(nccl().receive(r.tensor.address(), static_cast<std::size_t>(r.tensor.bytes()), ncclUint8, r.from,
                           comm, stream),
            "ncclRecv");
}

void queue_calls(ncclComm_t comm, const Collective& call, const GroupedMessages& messages,
                 cudaStream_t stream) {
  const auto count = [](const Tensor& t) { return static_cast<std::size_t>(t.numel()); };
  switch (call.operation) {
    case Operation::all_reduce:
      check(nccl().all_reduce(call.in.address(), call.out.address(), count(call.out), type_of(call.dtype),
                              operation_of(call.reduction), comm, stream),
            "ncclAllReduce");
      break;
    case Operation::broadcast:
      check(nccl().broadcast(call.in.address(), call.out.address(), count(call.out), type_of(call.dtype),
                             call.root, comm, stream),
            "ncclBroadcast");
      break;
    case Operation::reduce_scatter:
      queue_reduce_scatter(comm, call, stream);
      break;
    case Operation::all_gather:
      if (all_equal(call.out_counts))
        check(nccl().all_gather(call.in.address(), call.out.address(), count(call.in), type_of(call.dtype),
                                comm, stream),
              "ncclAllGather");
      else
        queue_messages(comm, call, messages, stream);
      break;
    case Operation::all_to_all:
    case Operation::exchange:
      queue_messages(comm, call, messages, stream);
      break;
    case Operation::barrier:
      break;
  }
}

void queue_call(const Handle& group, const Collective& call, const GroupedMessages& messages) {
  const cudaStream_t stream = cuda::stream();
  const std::lock_guard lock(of(group).mutex);
  check(nccl().group_start(), "ncclGroupStart");
  try {
    queue_calls(of(group).comm, call, messages, stream);
  } catch (...) {
    static_cast<void>(nccl().group_end());  // the first error counts
    throw;
  }
  check(nccl().group_end(), "ncclGroupEnd");
}

const cuda::Provide provided[] = {{library, version},    {unique_id, new_id}, {begin_world, make_world},
                                  {begin_split, divide}, {ready, is_ready},   {problem, find_problem},
                                  {queue, queue_call}};

}  // namespace
}  // namespace nemocube::nccl
