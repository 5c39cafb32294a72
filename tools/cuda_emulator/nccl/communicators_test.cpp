#include <dirent.h>
#include <fcntl.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "nccl/ranks.h"

using namespace emulator::nccl;

namespace {

using std::chrono::steady_clock;

const pid_t process_of_tests = getpid();

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

ncclComm_t join(int ranks, ncclUniqueId id, int rank) {
  ncclComm_t comm;
  EXPECT(ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess);
  return comm;
}

/// Waits until the communicator has an error. A busy machine gets much time.
ncclResult_t wait_for_error(ncclComm_t comm) {
  const auto begin = steady_clock::now();
  ncclResult_t error = ncclSuccess;
  while (seconds_since(begin) < 60) {
    cudaStreamQuery(nullptr);
    EXPECT(ncclCommGetAsyncError(comm, &error) == ncclSuccess);
    if (error != ncclSuccess && error != ncclInProgress) return error;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return error;
}

/// A rank that met a mistake of the program has reported it: its process ends with 99 although it returns 0.
void all_reported(const std::vector<int>& statuses) {
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    CAPTURE(rank);
    CHECK(statuses[rank] == 99);
  }
}

void all_good(const std::vector<int>& statuses) {
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    CAPTURE(rank);
    CHECK(statuses[rank] == 0);
  }
}

/// Segments whose ids were made by this process of tests, and not by others on this machine.
int segments_left() {
  static const std::string prefix = "cuda_emulator_nccl_" + std::to_string(process_of_tests) + "_";
  int count = 0;
  DIR* const folder = opendir("/dev/shm");
  while (const dirent* const entry = readdir(folder)) {
    count += std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0;
  }
  closedir(folder);
  return count;
}

}  // namespace

TEST_CASE("Communicators that are made without blocking") {
  const SharedCounter looked;  // ranks that have seen the communicator not ready
  all_good(run_ranks(3, [&](int rank, ncclUniqueId id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (rank == 2) looked.wait_for(2);
    ncclComm_t comm, part;
    const ncclResult_t made = ncclCommInitRankConfig(&comm, 3, id, rank, &config);
    EXPECT((made == ncclInProgress || made == ncclSuccess));
    if (rank != 2) EXPECT(made == ncclInProgress);
    const DeviceArray<float> x({1});
    if (rank == 0) {
      EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclInvalidUsage);
    }
    if (rank != 2) looked.add();
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) EXPECT(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    EXPECT(state == ncclSuccess);
    const ncclResult_t split = ncclCommSplit(comm, rank == 1 ? NCCL_SPLIT_NOCOLOR : 0, -rank, &part, nullptr);
    EXPECT((split == ncclInProgress || split == ncclSuccess));
    if (rank == 1) {
      EXPECT(part == nullptr);
    } else {
      do EXPECT(ncclCommGetAsyncError(part, &state) == ncclSuccess);
      while (state == ncclInProgress);
      int me = -1, count = 0;
      EXPECT(ncclCommUserRank(part, &me) == ncclSuccess);
      EXPECT(ncclCommCount(part, &count) == ncclSuccess);
      EXPECT((count == 2 && me == (rank == 2 ? 0 : 1)));
      EXPECT(ncclCommDestroy(part) == ncclSuccess);
    }
    EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess);
    EXPECT(x.get()[0] == 3);
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }));
  CHECK(segments_left() == 0);
}

TEST_CASE("Splits by color and key, many times") {
  all_good(run_ranks(4, [](int rank, ncclUniqueId id) {
    const ncclComm_t comm = join(4, id, rank);
    for (int turn = 0; turn < 6; ++turn) {
      const int color = turn % 2 ? rank / 2 : rank % 2;
      ncclComm_t part;
      EXPECT(ncclCommSplit(comm, color, -rank, &part, nullptr) == ncclSuccess);
      int me = -1, count = 0;
      EXPECT(ncclCommUserRank(part, &me) == ncclSuccess);
      EXPECT(ncclCommCount(part, &count) == ncclSuccess);
      EXPECT((count == 2 && me == (turn % 2 ? 1 - rank % 2 : 1 - rank / 2)));
      const DeviceArray<int> x({1 << rank}), y({1 << rank});
      EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclInt32, ncclSum, part, nullptr) == ncclSuccess);
      EXPECT(ncclAllReduce(y.data(), y.data(), 1, ncclInt32, ncclSum, comm, nullptr) == ncclSuccess);
      EXPECT(x.get()[0] == (turn % 2 ? 3 << rank / 2 * 2 : 5 << rank % 2));
      EXPECT(y.get()[0] == 15);
      EXPECT(ncclCommDestroy(part) == ncclSuccess);
    }
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }));
}

TEST_CASE("A rank that stands still does not take others for gone that did their part and left") {
  const SharedCounter done;
  all_good(run_ranks(3, [&](int rank, ncclUniqueId id) {
    const pid_t me = getpid();
    const pid_t stopper = rank == 0 ? fork() : -1;
    if (stopper == 0) {
      for (int turn = 0; done.count() == 0 && getppid() == me; ++turn) {
        usleep(static_cast<useconds_t>(500 + turn * 379 % 1500));
        kill(me, SIGSTOP);
        usleep(4000);
        kill(me, SIGCONT);
      }
      _exit(0);
    }
    const ncclComm_t comm = join(3, id, rank);
    const DeviceArray<int> x({1});
    for (int turn = 0; turn < 150; ++turn) {
      ncclComm_t part;
      EXPECT(ncclCommSplit(comm, 0, rank, &part, nullptr) == ncclSuccess);
      EXPECT(ncclBcast(x.data(), 1, ncclInt32, 0, part, nullptr) == ncclSuccess);
      EXPECT(cudaStreamSynchronize(nullptr) == cudaSuccess);
      EXPECT(ncclCommDestroy(part) == ncclSuccess);
    }
    if (rank == 0) {
      done.add();
      waitpid(stopper, nullptr, 0);
    }
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }));
}

TEST_CASE("A rank that is late for a collective of many pieces is no deadlock of the others") {
  const SharedCounter waiting;
  all_good(run_ranks(3, [&](int rank, ncclUniqueId id) {
    const ncclComm_t comm = join(3, id, rank);
    constexpr std::size_t count = 3'000'000;
    const DeviceArray<float> x(std::vector<float>(count, 1));
    if (rank == 2) {
      // Longer than ranks without progress take to look for a deadlock, and to look again.
      waiting.wait_for(2);
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    EXPECT(ncclAllReduce(x.data(), x.data(), count, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess);
    if (rank != 2) waiting.add();
    EXPECT(x.get().back() == 3);
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }));
}

TEST_CASE("A rank that stands still within a collective of many pieces is no deadlock of the others") {
  const SharedCounter stops;
  all_good(run_ranks(4, [&](int rank, ncclUniqueId id) {
    const ncclComm_t comm = join(4, id, rank);
    constexpr std::size_t count = 3'000'000;
    const DeviceArray<float> x(std::vector<float>(count, 0));
    const pid_t me = getpid();
    const pid_t stopper = rank == 3 ? fork() : -1;
    if (stopper == 0) {
      // Long enough for the others to look for a deadlock, and to look again; at eight moments of collectives.
      for (int turn = 0; turn < 8 && getppid() == me; ++turn) {
        usleep(static_cast<useconds_t>(20000 + turn * 7919));
        kill(me, SIGSTOP);
        usleep(450000);
        kill(me, SIGCONT);
        stops.add();
      }
      _exit(0);
    }
    // Rank 3 says how long: all ranks do as many collectives.
    const DeviceArray<int> more({1});
    while (more.get()[0]) {
      EXPECT(ncclAllReduce(x.data(), x.data(), count, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess);
      const int left = stops.count() < 8;
      EXPECT(cudaMemcpy(more.data(), &left, sizeof left, cudaMemcpyHostToDevice) == cudaSuccess);
      EXPECT(ncclBcast(more.data(), 1, ncclInt32, 3, comm, nullptr) == ncclSuccess);
    }
    if (rank == 3) waitpid(stopper, nullptr, 0);
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }));
}

TEST_CASE("Several devices of one process") {
  all_good(run_ranks(1, [](int, ncclUniqueId) {
    ncclComm_t comms[3];
    const int devices[] = {2, 0, 1};
    EXPECT(ncclCommInitAll(comms, 3, devices) == ncclSuccess);
    void* buffers[3];
    cudaStream_t streams[3];
    for (int i = 0; i < 3; ++i) {
      const float x = static_cast<float>(i + 1);
      EXPECT(cudaSetDevice(devices[i]) == cudaSuccess);
      EXPECT(cudaStreamCreate(&streams[i]) == cudaSuccess);
      EXPECT(cudaMalloc(&buffers[i], 4) == cudaSuccess);
      EXPECT(cudaMemcpy(buffers[i], &x, 4, cudaMemcpyHostToDevice) == cudaSuccess);
    }
    EXPECT(ncclAllReduce(buffers[0], buffers[0], 1, ncclFloat32, ncclSum, comms[0], streams[1]) ==
           ncclInvalidUsage);
    EXPECT(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 3; ++i) {
      EXPECT(ncclAllReduce(buffers[i], buffers[i], 1, ncclFloat32, ncclSum, comms[i], streams[i]) ==
             ncclSuccess);
    }
    EXPECT(ncclGroupEnd() == ncclSuccess);
    for (int i = 0; i < 3; ++i) {
      float x = 0;
      EXPECT(cudaSetDevice(devices[i]) == cudaSuccess);
      EXPECT(cudaStreamSynchronize(streams[i]) == cudaSuccess);
      EXPECT(cudaMemcpy(&x, buffers[i], 4, cudaMemcpyDeviceToHost) == cudaSuccess);
      EXPECT(x == 6);
    }
    for (const ncclComm_t comm : comms) EXPECT(ncclCommDestroy(comm) == ncclSuccess);
    const int twice[] = {0, 0};
    EXPECT(ncclCommInitAll(comms, 2, twice) == ncclInvalidUsage);
  }));
}

TEST_CASE("Sends and receives: a ring, several to one peer, to oneself, several streams") {
  all_good(run_ranks(3, [](int rank, ncclUniqueId id) {
    const ncclComm_t comm = join(3, id, rank);
    const int next = (rank + 1) % 3, before = (rank + 2) % 3;
    const DeviceArray<int> mine({rank}), more({rank + 10}), self({0}), first({0}), second({0});
    cudaStream_t other;
    EXPECT(cudaStreamCreate(&other) == cudaSuccess);
    EXPECT(ncclGroupStart() == ncclSuccess);
    EXPECT(ncclRecv(first.data(), 1, ncclInt32, before, comm, nullptr) == ncclSuccess);
    EXPECT(ncclRecv(second.data(), 1, ncclInt32, before, comm, other) == ncclSuccess);
    EXPECT(ncclSend(mine.data(), 1, ncclInt32, next, comm, nullptr) == ncclSuccess);
    EXPECT(ncclSend(more.data(), 1, ncclInt32, next, comm, nullptr) == ncclSuccess);
    EXPECT(ncclSend(more.data(), 1, ncclInt32, rank, comm, nullptr) == ncclSuccess);
    EXPECT(ncclRecv(self.data(), 1, ncclInt32, rank, comm, nullptr) == ncclSuccess);
    EXPECT(ncclSend(mine.data(), 0, ncclInt32, next, comm, nullptr) == ncclSuccess);
    EXPECT(ncclRecv(first.data(), 0, ncclInt32, before, comm, nullptr) == ncclSuccess);
    EXPECT(ncclGroupEnd() == ncclSuccess);
    EXPECT(second.get(other)[0] == before + 10);
    EXPECT(first.get()[0] == before);
    EXPECT(self.get()[0] == rank + 10);
    // One after the other, in matching order.
    if (rank == 0) EXPECT(ncclSend(mine.data(), 1, ncclInt32, 1, comm, nullptr) == ncclSuccess);
    if (rank == 1) EXPECT(ncclRecv(first.data(), 1, ncclInt32, 0, comm, nullptr) == ncclSuccess);
    if (rank == 1) EXPECT(first.get()[0] == 0);
    EXPECT(cudaStreamSynchronize(nullptr) == cudaSuccess);
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }));
}

TEST_CASE("Ranks that do different things are told so, all of them") {
  const std::function<void(int, const DeviceArray<float>&, ncclComm_t)> mistakes[] = {
      [](int rank, const DeviceArray<float>& x, ncclComm_t comm) {  // counts
        ncclAllReduce(x.data(), x.data(), rank == 0 ? 1 : 2, ncclFloat32, ncclSum, comm, nullptr);
      },
      [](int rank, const DeviceArray<float>& x, ncclComm_t comm) {  // kinds
        if (rank == 0) ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr);
        if (rank == 1) ncclBcast(x.data(), 1, ncclFloat32, 0, comm, nullptr);
      },
      [](int rank, const DeviceArray<float>& x, ncclComm_t comm) {  // types
        ncclAllReduce(x.data(), x.data(), 1, rank == 0 ? ncclFloat32 : ncclInt32, ncclSum, comm, nullptr);
      },
      [](int rank, const DeviceArray<float>& x, ncclComm_t comm) {  // operators
        ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, rank == 0 ? ncclSum : ncclMax, comm, nullptr);
      },
      [](int rank, const DeviceArray<float>& x, ncclComm_t comm) {  // roots
        ncclBcast(x.data(), 1, ncclFloat32, rank, comm, nullptr);
      },
      [](int rank, const DeviceArray<float>& x, ncclComm_t comm) {  // sizes of messages
        if (rank == 0) ncclSend(x.data(), 1, ncclFloat32, 1, comm, nullptr);
        if (rank == 1) ncclRecv(x.data(), 2, ncclFloat32, 0, comm, nullptr);
      },
      [](int rank, const DeviceArray<float>& x, ncclComm_t comm) {  // both send first
        ncclSend(x.data(), 1, ncclFloat32, 1 - rank, comm, nullptr);
        ncclRecv(x.data(), 1, ncclFloat32, 1 - rank, comm, nullptr);
      },
      [](int rank, const DeviceArray<float>& x, ncclComm_t comm) {  // order of a message and a collective
        if (rank == 0) ncclSend(x.data(), 1, ncclFloat32, 1, comm, nullptr);
        ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr);
        if (rank == 1) ncclRecv(x.data(), 1, ncclFloat32, 0, comm, nullptr);
      },
      [](int rank, const DeviceArray<float>& x, ncclComm_t comm) {  // a send to oneself alone
        ncclSend(x.data(), 1, ncclFloat32, rank, comm, nullptr);
      },
  };
  for (std::size_t i = 0; i < std::size(mistakes); ++i) {
    CAPTURE(i);
    all_reported(run_ranks(2, [&](int rank, ncclUniqueId id) {
      const ncclComm_t comm = join(2, id, rank);
      const DeviceArray<float> x({1, 2});
      mistakes[i](rank, x, comm);
      EXPECT(wait_for_error(comm) == ncclInvalidUsage);
      EXPECT(std::strlen(ncclGetLastError(comm)) > 20);
      EXPECT(cudaStreamSynchronize(nullptr) != cudaSuccess);
      ncclCommAbort(comm);
    }));
  }
}

TEST_CASE("A rank without work of its own reports what another did wrong before it aborts") {
  all_reported(run_ranks(2, [](int rank, ncclUniqueId id) {
    const ncclComm_t comm = join(2, id, rank);
    const DeviceArray<float> x({1});
    if (rank == 0) ncclSend(x.data(), 1, ncclFloat32, 0, comm, nullptr);
    EXPECT(wait_for_error(comm) == ncclInvalidUsage);
    ncclCommAbort(comm);
  }));
}

TEST_CASE("Two communicators whose collectives come in different orders") {
  all_reported(run_ranks(2, [](int rank, ncclUniqueId id) {
    const ncclComm_t comm = join(2, id, rank);
    ncclComm_t twin;
    EXPECT(ncclCommSplit(comm, 0, rank, &twin, nullptr) == ncclSuccess);
    const DeviceArray<float> x({1}), y({1});
    cudaStream_t streams[2];
    for (cudaStream_t& stream : streams)
      EXPECT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    for (int i = 0; i < 2; ++i) {
      const bool second = (i == 1) != (rank == 1);
      ncclAllReduce(second ? y.data() : x.data(), second ? y.data() : x.data(), 1, ncclFloat32, ncclSum,
                    second ? twin : comm, streams[second]);
    }
    EXPECT(wait_for_error(comm) == ncclInvalidUsage);
    EXPECT(std::strstr(ncclGetLastError(comm), "deadlock") != nullptr);
    ncclCommAbort(comm);
    ncclCommAbort(twin);
  }));
}

TEST_CASE("A rank that dies becomes a remote error, and abort lets the stream go on") {
  const std::vector<int> statuses = run_ranks(3, [](int rank, ncclUniqueId id) {
    const ncclComm_t comm = join(3, id, rank);
    const DeviceArray<float> x({1});
    EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess);
    EXPECT(x.get()[0] == 3);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      raise(SIGKILL);
    }
    EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess);
    EXPECT(wait_for_error(comm) == ncclRemoteError);
    EXPECT(cudaStreamQuery(nullptr) == cudaErrorNotReady);
    EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclRemoteError);
    EXPECT(ncclCommAbort(comm) == ncclSuccess);
    EXPECT(cudaStreamSynchronize(nullptr) == cudaSuccess);
  });
  CHECK(statuses == std::vector<int>{0, 128 + SIGKILL, 0});
}

TEST_CASE("Abort from another thread") {
  all_good(run_ranks(2, [](int rank, ncclUniqueId id) {
    const ncclComm_t comm = join(2, id, rank);
    const DeviceArray<float> x({1});
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      EXPECT(ncclCommAbort(comm) == ncclSuccess);
      return;
    }
    EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess);
    std::thread thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT(ncclCommAbort(comm) == ncclSuccess);
    });
    EXPECT(cudaStreamSynchronize(nullptr) == cudaSuccess);
    thread.join();
  }));
}

TEST_CASE("A rank that waits for one that left and does not abort ends with an error, not with a hang") {
  const std::vector<int> statuses = run_ranks(2, [](int rank, ncclUniqueId id) {
    const ncclComm_t comm = join(2, id, rank);
    if (rank == 1) {
      EXPECT(ncclCommDestroy(comm) == ncclSuccess);
      return;
    }
    const DeviceArray<float> x({1});
    EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess);
    EXPECT(cudaStreamSynchronize(nullptr) != cudaSuccess);
  });
  CHECK(statuses == std::vector<int>{99, 0});
}

TEST_CASE("Segments of processes that were killed before all ranks came are removed") {
  const std::vector<int> statuses = run_ranks(1, [](int, ncclUniqueId id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm;
    EXPECT(ncclCommInitRankConfig(&comm, 2, id, 0, &config) == ncclInProgress);
    EXPECT(segments_left() == 1);
    raise(SIGKILL);
  });
  CHECK(statuses[0] == 128 + SIGKILL);
  all_good(run_ranks(1, [](int rank, ncclUniqueId id) { ncclCommDestroy(join(1, id, rank)); }));
  CHECK(segments_left() == 0);
  all_good(run_ranks(1, [](int, ncclUniqueId id) {  // ends in order
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm;
    EXPECT(ncclCommInitRankConfig(&comm, 2, id, 0, &config) == ncclInProgress);
  }));
  CHECK(segments_left() == 0);
}

TEST_CASE("Arguments that NCCL refuses") {
  all_good(run_ranks(1, [](int rank, ncclUniqueId id) {
    ncclUniqueId bad{};
    ncclComm_t comm;
    EXPECT(ncclCommInitRank(&comm, 1, bad, 0) == ncclInvalidArgument);
    EXPECT(ncclCommInitRank(&comm, 1, id, 1) == ncclInvalidArgument);
    ncclConfig_t config{};
    EXPECT(ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclInvalidArgument);
    comm = join(1, id, rank);
    const DeviceArray<float> x({1, 2, 3, 4});
    EXPECT(ncclAllReduce(nullptr, x.data(), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(x.data(), x.data() + 1, 2, ncclFloat32, ncclSum, comm, nullptr) ==
           ncclInvalidArgument);
    EXPECT(ncclBcast(x.data(), 1, ncclFloat32, 1, comm, nullptr) == ncclInvalidArgument);
    EXPECT(ncclSend(x.data(), 1, ncclFloat32, 1, comm, nullptr) == ncclInvalidArgument);
    EXPECT(ncclAllReduce(x.data(), x.data(), 1, static_cast<ncclDataType_t>(12), ncclSum, comm, nullptr) ==
           ncclInvalidArgument);
    EXPECT(ncclGroupEnd() == ncclInvalidUsage);
    EXPECT(ncclGroupStart() == ncclSuccess);
    ncclBcast(x.data(), 1, ncclFloat32, 1, comm, nullptr);
    EXPECT(ncclGroupEnd() == ncclInvalidArgument);
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
    EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr) == ncclInvalidArgument);
    int version = 0;
    EXPECT(ncclGetVersion(&version) == ncclSuccess);
    EXPECT(version == 22809);
  }));
}
