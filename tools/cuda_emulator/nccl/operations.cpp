#include <cuda_runtime_api.h>

#include <cstring>

#include "nccl/api.h"
#include "nccl/reduction.h"
#include "runtime/library.h"

namespace emulator::nccl {
namespace {

/// Fills in a user's operator.
void resolve_operator(const Communicator& communicator, Request& request) {
  const int operation = request.operation;
  if (operation >= 0 && operation < ncclNumOps) return;
  const auto index = static_cast<std::size_t>(operation - ncclNumOps);
  if (operation < 0 || index >= communicator.operators.size() || !communicator.operators[index].live) {
    throw Failure{ncclInvalidArgument, "there is no operator " + std::to_string(operation)};
  }
  const PreMultiplied& made = communicator.operators[index];
  if (made.type != request.type) {
    throw Failure{ncclInvalidArgument, std::string("the operator was made for ") + type_name(made.type) +
                                           ", not " + type_name(request.type)};
  }
  request.operation = pre_multiplied_sum;
  request.factor = made.factor;
  request.device_factor = made.device;
}

/// Send and receive buffers may share memory only where the call works in place.
void check_overlap(const Communicator& communicator, const Request& request) {
  const int rank = communicator.rank(), ranks = communicator.ranks();
  const std::size_t sent = request.send_bytes(rank, ranks), received = request.receive_bytes(rank, ranks);
  const auto *const from = static_cast<const std::byte*>(request.send), *const to =
                                                                            static_cast<const std::byte*>(
                                                                                request.receive);
  if (sent == 0 || received == 0 || from + sent <= to || to + received <= from) return;
  const std::size_t share = static_cast<std::size_t>(rank) * request.count * type_bytes(request.type);
  bool in_place = from == to;
  if (request.kind == Kind::all_gather || request.kind == Kind::gather) in_place = from == to + share;
  if (request.kind == Kind::reduce_scatter || request.kind == Kind::scatter) in_place = to == from + share;
  if (request.kind == Kind::all_to_all) in_place = false;
  if (!in_place)
    throw Failure{ncclInvalidArgument, describe(request) + ": the send and receive buffers overlap"};
}

ncclResult_t call(ncclComm_t handle, Request request) {
  return api(request.name(), [&] {
    Communicator& communicator = usable(handle);
    if (type_bytes(request.type) == 0) {
      throw Failure{ncclInvalidArgument, "there is no type " + std::to_string(request.type)};
    }
    if ((request.has_root() || !request.collective()) &&
        (request.root < 0 || request.root >= communicator.ranks())) {
      throw Failure{ncclInvalidArgument, "there is no rank " + std::to_string(request.root)};
    }
    if (request.reduces()) resolve_operator(communicator, request);
    const int rank = communicator.rank(), ranks = communicator.ranks();
    if ((!request.send && request.send_bytes(rank, ranks)) ||
        (!request.receive && request.receive_bytes(rank, ranks))) {
      throw Failure{ncclInvalidArgument, describe(request) + ": a buffer is NULL"};
    }
    if (request.stream && cuda_emulator_device_of(request.stream) != communicator.device()) {
      throw Failure{ncclInvalidUsage, "the stream belongs to device " +
                                          std::to_string(cuda_emulator_device_of(request.stream)) +
                                          ", the communicator to device " +
                                          std::to_string(communicator.device())};
    }
    check_overlap(communicator, request);
    add(communicator, request);
  });
}

}  // namespace
}  // namespace emulator::nccl

using namespace emulator::nccl;

extern "C" {

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::all_reduce, send, receive, count, type, operation, 0, 0, nullptr, stream});
}
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::reduce, send, receive, count, type, operation, root, 0, nullptr, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::broadcast, send, receive, count, type, 0, root, 0, nullptr, stream});
}
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::all_gather, send, receive, count, type, 0, 0, 0, nullptr, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::reduce_scatter, send, receive, count, type, operation, 0, 0, nullptr, stream});
}
ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return call(comm, {Kind::all_to_all, send, receive, count, type, 0, 0, 0, nullptr, stream});
}
ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::gather, send, receive, count, type, 0, root, 0, nullptr, stream});
}
ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::scatter, send, receive, count, type, 0, root, 0, nullptr, stream});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, {Kind::send, send, nullptr, count, type, 0, peer, 0, nullptr, stream});
}
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, {Kind::receive, nullptr, receive, count, type, 0, peer, 0, nullptr, stream});
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* operation, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return api("ncclRedOpCreatePreMulSum", [&] {
    Communicator& communicator = usable(comm);
    if (!operation || !scalar || type_bytes(type) == 0)
      throw Failure{ncclInvalidArgument, "an argument is missing"};
    PreMultiplied made;
    made.type = type;
    made.live = true;
    if (residence == ncclScalarHostImmediate) {
      std::memcpy(&made.factor, scalar, type_bytes(type));
    } else {
      made.device = scalar;
    }
    communicator.operators.push_back(made);
    *operation = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(communicator.operators.size()) - 1);
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t operation, ncclComm_t comm) {
  return api("ncclRedOpDestroy", [&] {
    Communicator& communicator = checked(comm);
    const auto index = static_cast<std::size_t>(operation - ncclNumOps);
    if (operation < ncclNumOps || index >= communicator.operators.size() ||
        !communicator.operators[index].live) {
      throw Failure{ncclInvalidArgument, "there is no operator " + std::to_string(operation)};
    }
    communicator.operators[index].live = false;
  });
}

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* pointer) {
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Registered memory needs nothing here; the handles only have to differ from NULL.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t, void** handle) {
  return api("ncclCommRegister", [&] {
    checked(comm);
    if (!handle) throw Failure{ncclInvalidArgument, "handle is NULL"};
    *handle = buffer;
  });
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  return api("ncclCommDeregister", [&] { checked(comm); });
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t, ncclWindow_t* window, int) {
  return api("ncclCommWindowRegister", [&] {
    checked(comm);
    if (!window) throw Failure{ncclInvalidArgument, "win is NULL"};
    *window = static_cast<ncclWindow_t>(buffer);
  });
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  return api("ncclCommWindowDeregister", [&] { checked(comm); });
}
}
