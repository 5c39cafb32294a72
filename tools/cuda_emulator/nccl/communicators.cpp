#include <cuda_runtime_api.h>

#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "nccl/api.h"

/// Making and ending communicators, and what they tell of themselves.
namespace emulator::nccl {
namespace {

/// In a ncclUniqueId, before the name of the segment.
constexpr char id_magic[8] = {'c', 'u', 'd', 'a', 'e', 'm', 'u', '1'};

struct Handles {
  std::mutex mutex;
  std::set<ncclComm_t> live;
};
Handles& handles() {
  static auto* const instance = new Handles;
  return *instance;
}

ncclComm_t new_handle(std::shared_ptr<Communicator> communicator) {
  const std::lock_guard lock(handles().mutex);
  auto* const handle = new ncclComm{std::move(communicator)};
  handles().live.insert(handle);
  return handle;
}

/// Takes the handle away from the program.
std::shared_ptr<Communicator> release(ncclComm_t handle) {
  const std::lock_guard lock(handles().mutex);
  handles().live.erase(handle);
  std::shared_ptr<Communicator> communicator = std::move(handle->communicator);
  delete handle;
  return communicator;
}

std::string segment_name(const ncclUniqueId& id) {
  if (std::memcmp(id.internal, id_magic, sizeof id_magic) != 0) {
    throw Failure{ncclInvalidArgument, "the id was not made by ncclGetUniqueId"};
  }
  const char* const name = id.internal + sizeof id_magic;
  return std::string(name, strnlen(name, sizeof id.internal - sizeof id_magic));
}

/// Whether calls with this configuration wait. `otherwise`: what unset means.
bool blocking(const ncclConfig_t* config, bool otherwise) {
  if (!config) return otherwise;
  if (config->magic != 0xcafebeef || config->size == 0 || config->size > sizeof(ncclConfig_t)) {
    throw Failure{ncclInvalidArgument, "the configuration was not made with NCCL_CONFIG_INITIALIZER"};
  }
  if (config->blocking == NCCL_CONFIG_UNDEF_INT) return otherwise;
  if (config->blocking != 0 && config->blocking != 1)
    throw Failure{ncclInvalidArgument, "blocking must be 0 or 1"};
  return config->blocking == 1;
}

std::string label_in(const ncclConfig_t* config) {
  // Older programs have a shorter structure.
  constexpr std::size_t with_name = offsetof(ncclConfig_t, commName) + sizeof(config->commName);
  return config && config->size >= with_name && config->commName ? config->commName : "";
}

int current_device() {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess)
    throw Failure{ncclUnhandledCudaError, std::string("cudaGetDevice: ") + cudaGetErrorString(error)};
  return device;
}

/// Hands out the communicator, or takes it back when it could not be made. The result of the creation is thrown unless it succeeded.
void create(ncclComm_t* handle, const std::shared_ptr<Communicator>& communicator) {
  *handle = new_handle(communicator);
  const ncclResult_t result = add_creation(communicator);
  if (result == ncclSuccess || result == ncclInProgress) {
    if (result == ncclInProgress) throw Failure{ncclInProgress, "the communicator is not ready yet"};
    return;
  }
  release(*handle);
  *handle = nullptr;
  throw Failure{result, communicator->message()};
}

/// `segment`: the name of the memory that the ranks share.
void join(ncclComm_t* handle, int ranks, const std::string& segment, int rank, bool wait,
          const std::string& label = {}) {
  if (!handle) throw Failure{ncclInvalidArgument, "comm is NULL"};
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw Failure{ncclInvalidArgument,
                  "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " ranks"};
  }
  static std::once_flag cleaned;
  std::call_once(cleaned, remove_dead_segments);
  const auto communicator = std::make_shared<Communicator>(current_device(), wait);
  communicator->label = label;
  communicator->begin_join(segment, ranks, rank);
  create(handle, communicator);
}

/// Waits until this rank's work on the communicator is done, or will never be.
void flush(Communicator& communicator) {
  while (communicator.outstanding > 0 && !communicator.aborted() && communicator.error() == ncclSuccess) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Communicator& checked(ncclComm_t handle) {
  const std::lock_guard lock(handles().mutex);
  if (!handle || !handles().live.contains(handle)) {
    throw Failure{ncclInvalidArgument, "the communicator does not exist"};
  }
  return *handle->communicator;
}

Communicator& usable(ncclComm_t handle) {
  Communicator& communicator = checked(handle);
  if (!communicator.ready()) {
    const ncclResult_t state = communicator.poll();
    if (state == ncclInProgress) {
      throw Failure{ncclInvalidUsage,
                    "the communicator is not ready: ncclCommGetAsyncError still tells ncclInProgress"};
    }
    if (state != ncclSuccess) throw Failure{state, communicator.message()};
  }
  if (communicator.finalized) throw Failure{ncclInvalidUsage, "the communicator was finalized"};
  const ncclResult_t error = communicator.error();
  if (error != ncclSuccess) throw Failure{error, communicator.message()};
  return communicator;
}

}  // namespace emulator::nccl

using namespace emulator::nccl;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (!version) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return api("ncclGetUniqueId", [&] {
    if (!id) throw Failure{ncclInvalidArgument, "id is NULL"};
    const std::string name = new_segment_name();
    std::memset(id, 0, sizeof *id);
    std::memcpy(id->internal, id_magic, sizeof id_magic);
    std::memcpy(id->internal + sizeof id_magic, name.data(), name.size());
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return api("ncclCommInitRankConfig",
             [&] { join(comm, ranks, segment_name(id), rank, blocking(config, true), label_in(config)); });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return api("ncclCommInitRank", [&] { join(comm, ranks, segment_name(id), rank, true); });
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId* id,
                                      ncclConfig_t* config) {
  return api("ncclCommInitRankScalable", [&] {
    if (!id || ids < 1) throw Failure{ncclInvalidArgument, "there is no id"};
    join(comm, ranks, segment_name(id[0]), rank, blocking(config, true), label_in(config));
  });
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  return api("ncclCommInitAll", [&] {
    if (!comms || count < 1) throw Failure{ncclInvalidArgument, "there are no communicators to make"};
    const int before = current_device();
    const std::string name = new_segment_name();
    ncclGroupStart();
    ncclResult_t result = ncclSuccess;
    for (int rank = 0; rank < count && result == ncclSuccess; ++rank) {
      if (cudaSetDevice(devices ? devices[rank] : rank) != cudaSuccess) {
        result = ncclInvalidArgument;
        set_last_error("there is no device " + std::to_string(devices ? devices[rank] : rank));
      } else {
        result = api("ncclCommInitAll", [&] { join(comms + rank, count, name, rank, true); });
      }
    }
    const ncclResult_t ended = ncclGroupEnd();
    cudaSetDevice(before);
    if (result == ncclSuccess) result = ended;
    if (result != ncclSuccess) throw Failure{result, last_error()};
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t* config) {
  return api("ncclCommSplit", [&] {
    Communicator& parent = usable(comm);
    if (!split || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
      throw Failure{ncclInvalidArgument, "color or newcomm"};
    const auto communicator =
        std::make_shared<Communicator>(parent.device(), blocking(config, parent.blocking()));
    communicator->label = label_in(config);
    communicator->begin_split(parent.shared_from_this(), color, key);
    if (color != NCCL_SPLIT_NOCOLOR) return create(split, communicator);
    *split = nullptr;
    const ncclResult_t result = add_creation(communicator);
    if (result != ncclSuccess && result != ncclInProgress) throw Failure{result, communicator->message()};
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return api("ncclCommFinalize", [&] {
    Communicator& communicator = usable(comm);
    communicator.finalized = true;
    if (!communicator.blocking()) {
      if (communicator.outstanding > 0) throw Failure{ncclInProgress, "work is under way"};
      return;
    }
    flush(communicator);
    if (communicator.error() != ncclSuccess) throw Failure{communicator.error(), communicator.message()};
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  return api("ncclCommDestroy", [&] {
    Communicator& communicator = checked(comm);
    if (communicator.ready()) flush(communicator);
    // Work that waits for a rank that is gone, or a communicator that was never ready, ends now.
    const bool whole = communicator.ready() && communicator.outstanding == 0;
    if (whole) {
      communicator.leave(RankState::left);
    } else {
      communicator.abort();
    }
    release(comm);
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  return api("ncclCommAbort", [&] {
    checked(comm).abort();
    release(comm);
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return api("ncclCommGetAsyncError", [&] {
    Communicator& communicator = checked(comm);
    if (!error) throw Failure{ncclInvalidArgument, "asyncError is NULL"};
    if (communicator.ready() && communicator.error() == ncclSuccess) communicator.watch_all();
    *error = communicator.ready() ? communicator.error() : communicator.poll();
    if (*error == ncclSuccess && communicator.finalized && communicator.outstanding > 0)
      *error = ncclInProgress;
    if (*error != ncclSuccess && *error != ncclInProgress) set_last_error(communicator.message());
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "a CUDA call failed";
    case ncclSystemError:
      return "a system call failed";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "a remote process ended or failed";
    case ncclInProgress:
      return "operation in progress";
    default:
      return "unknown result";
  }
}

const char* ncclGetLastError(ncclComm_t) { return last_error(); }

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return api("ncclCommCount", [&] { *count = usable(comm).ranks(); });
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return api("ncclCommCuDevice", [&] { *device = usable(comm).device(); });
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return api("ncclCommUserRank", [&] { *rank = usable(comm).rank(); });
}
}
