#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "nccl/ranks.h"

using namespace emulator::nccl;

namespace {

constexpr std::size_t counts[] = {0, 1, 7, 1000, 70001};

/// Small numbers that differ by rank and place; sums and products of four are exact in all types used here.
template <class T>
T value(int rank, std::size_t i) {
  return static_cast<T>((static_cast<std::size_t>(rank) * 3 + i) % 3 + 1);
}

template <class T>
std::vector<T> values(int rank, std::size_t count) {
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = value<T>(rank, i);
  return result;
}

template <class T>
T reduced(ncclRedOp_t operation, int ranks, std::size_t i) {
  T result = value<T>(0, i);
  for (int r = 1; r < ranks; ++r) {
    const T x = value<T>(r, i);
    switch (operation) {
      case ncclProd:
        result = static_cast<T>(result * x);
        break;
      case ncclMax:
        result = std::max(result, x);
        break;
      case ncclMin:
        result = std::min(result, x);
        break;
      default:
        result = static_cast<T>(result + x);
    }
  }
  if (operation == ncclAvg) result = static_cast<T>(result / static_cast<T>(ranks));
  return result;
}

template <class T>
void every_collective(ncclDataType_t type, int rank, int ranks, ncclComm_t comm) {
  for (const std::size_t count : counts) {
    const auto n = static_cast<std::size_t>(ranks), me = static_cast<std::size_t>(rank);
    const DeviceArray<T> mine(values<T>(rank, count)), all_mine(values<T>(rank, count * n));
    for (const ncclRedOp_t operation : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
      const DeviceArray<T> out{std::vector<T>(count)}, root_out{std::vector<T>(count)},
          part{std::vector<T>(count)};
      EXPECT(ncclAllReduce(mine.data(), out.data(), count, type, operation, comm, nullptr) == ncclSuccess);
      const int root = ranks - 1;
      EXPECT(ncclReduce(mine.data(), rank == root ? root_out.data() : nullptr, count, type, operation, root,
                        comm, nullptr) == ncclSuccess);
      EXPECT(ncclReduceScatter(all_mine.data(), part.data(), count, type, operation, comm, nullptr) ==
             ncclSuccess);
      const std::vector<T> got = out.get(), got_root = root_out.get(), got_part = part.get();
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT(got[i] == reduced<T>(operation, ranks, i));
        EXPECT(got_root[i] == (rank == root ? reduced<T>(operation, ranks, i) : T{}));
        EXPECT(got_part[i] == reduced<T>(operation, ranks, me * count + i));
      }
    }
    const DeviceArray<T> in_place(values<T>(rank, count)), copy(values<T>(rank, count)),
        root_copy(values<T>(rank, count)), gathered{std::vector<T>(count * n)},
        exchanged{std::vector<T>(count * n)}, root_gathered{std::vector<T>(count * n)},
        scattered{std::vector<T>(count)};
    EXPECT(ncclAllReduce(in_place.data(), in_place.data(), count, type, ncclSum, comm, nullptr) ==
           ncclSuccess);
    EXPECT(ncclBroadcast(mine.data(), copy.data(), count, type, 0, comm, nullptr) == ncclSuccess);
    EXPECT(ncclBcast(root_copy.data(), count, type, ranks - 1, comm, nullptr) == ncclSuccess);
    EXPECT(ncclAllGather(mine.data(), gathered.data(), count, type, comm, nullptr) == ncclSuccess);
    EXPECT(ncclAlltoAll(all_mine.data(), exchanged.data(), count, type, comm, nullptr) == ncclSuccess);
    EXPECT(ncclGather(mine.data(), root_gathered.data(), count, type, 0, comm, nullptr) == ncclSuccess);
    EXPECT(ncclScatter(all_mine.data(), scattered.data(), count, type, 0, comm, nullptr) == ncclSuccess);
    const std::vector<T> sum = in_place.get(), a = copy.get(), b = root_copy.get(), c = gathered.get(),
                         d = exchanged.get(), e = root_gathered.get(), f = scattered.get();
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT(sum[i] == reduced<T>(ncclSum, ranks, i));
      EXPECT(a[i] == value<T>(0, i));
      EXPECT(b[i] == value<T>(ranks - 1, i));
      EXPECT(f[i] == value<T>(0, me * count + i));
      for (int r = 0; r < ranks; ++r) {
        const std::size_t place = static_cast<std::size_t>(r) * count + i;
        EXPECT(c[place] == value<T>(r, i));
        EXPECT(d[place] == value<T>(r, me * count + i));
        EXPECT(e[place] == (rank == 0 ? value<T>(r, i) : T{}));
      }
    }
  }
}

void all_good(const std::vector<int>& statuses) {
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    CAPTURE(rank);
    CHECK(statuses[rank] == 0);
  }
}

}  // namespace

TEST_CASE("Every collective, operator and standard type over 1 to 4 processes") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    CAPTURE(ranks);
    all_good(run_ranks(ranks, [ranks](int rank, ncclUniqueId id) {
      ncclComm_t comm;
      EXPECT(ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess);
      int count = 0, me = -1, device = -1;
      EXPECT(ncclCommCount(comm, &count) == ncclSuccess);
      EXPECT(ncclCommUserRank(comm, &me) == ncclSuccess);
      EXPECT(ncclCommCuDevice(comm, &device) == ncclSuccess);
      EXPECT((count == ranks && me == rank && device == 0));
      every_collective<float>(ncclFloat32, rank, ranks, comm);
      if (ranks == 3) {
        every_collective<std::int8_t>(ncclInt8, rank, ranks, comm);
        every_collective<std::uint8_t>(ncclUint8, rank, ranks, comm);
        every_collective<std::int32_t>(ncclInt32, rank, ranks, comm);
        every_collective<std::uint32_t>(ncclUint32, rank, ranks, comm);
        every_collective<std::int64_t>(ncclInt64, rank, ranks, comm);
        every_collective<std::uint64_t>(ncclUint64, rank, ranks, comm);
        every_collective<double>(ncclFloat64, rank, ranks, comm);
      }
      EXPECT(ncclCommFinalize(comm) == ncclSuccess);
      EXPECT(ncclCommDestroy(comm) == ncclSuccess);
    }));
  }
}

TEST_CASE("16-bit and 8-bit floats: sums in f32, rounded once; factors of their own") {
  all_good(run_ranks(3, [](int rank, ncclUniqueId id) {
    ncclComm_t comm;
    EXPECT(ncclCommInitRank(&comm, 3, id, rank) == ncclSuccess);
    // bf16 1, 2^-8 and 2^-8: step by step 1 + 2^-8 would round back to 1, the exact sum is 1 + 2^-7.
    const DeviceArray<std::uint16_t> bf16({static_cast<std::uint16_t>(rank == 0 ? 0x3f80 : 0x3b80)});
    EXPECT(ncclAllReduce(bf16.data(), bf16.data(), 1, ncclBfloat16, ncclSum, comm, nullptr) == ncclSuccess);
    EXPECT(bf16.get()[0] == 0x3f81);
    // f16 1, 2^-11, 2^-11
    const DeviceArray<std::uint16_t> f16({static_cast<std::uint16_t>(rank == 0 ? 0x3c00 : 0x1000)});
    EXPECT(ncclAllReduce(f16.data(), f16.data(), 1, ncclFloat16, ncclSum, comm, nullptr) == ncclSuccess);
    EXPECT(f16.get()[0] == 0x3c01);
    // e4m3 1 + 1 + 1 = 3, e5m2 the same
    const DeviceArray<std::uint8_t> e4m3({0x38}), e5m2({0x3c});
    EXPECT(ncclAllReduce(e4m3.data(), e4m3.data(), 1, ncclFloat8e4m3, ncclSum, comm, nullptr) == ncclSuccess);
    EXPECT(ncclAllReduce(e5m2.data(), e5m2.data(), 1, ncclFloat8e5m2, ncclSum, comm, nullptr) == ncclSuccess);
    EXPECT(e4m3.get()[0] == 0x44);
    EXPECT(e5m2.get()[0] == 0x42);
    // 1 x 2 + 2 x 3 + 3 x 4 with factors from the host and from the device
    for (const bool on_device : {false, true}) {
      float factor = static_cast<float>(rank + 2);
      const DeviceArray<float> device_factor({factor}), x({static_cast<float>(rank + 1)});
      ncclRedOp_t operation;
      EXPECT(ncclRedOpCreatePreMulSum(&operation, on_device ? device_factor.data() : &factor, ncclFloat32,
                                      on_device ? ncclScalarDevice : ncclScalarHostImmediate,
                                      comm) == ncclSuccess);
      EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, operation, comm, nullptr) == ncclSuccess);
      EXPECT(x.get()[0] == 20);
      EXPECT(ncclRedOpDestroy(operation, comm) == ncclSuccess);
      EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, operation, comm, nullptr) ==
             ncclInvalidArgument);
    }
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }));
}

TEST_CASE("Operations of a communicator in a graph go in the order of the calls, whatever their streams") {
  all_good(run_ranks(2, [](int rank, ncclUniqueId id) {
    ncclComm_t comm;
    EXPECT(ncclCommInitRank(&comm, 2, id, rank) == ncclSuccess);
    const DeviceArray<float> x({1}), y({1, 1, 1});
    cudaStream_t first = nullptr, second = nullptr;
    cudaEvent_t fork = nullptr, join = nullptr;
    for (cudaStream_t* stream : {&first, &second})
      EXPECT(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking) == cudaSuccess);
    for (cudaEvent_t* event : {&fork, &join})
      EXPECT(cudaEventCreateWithFlags(event, cudaEventDisableTiming) == cudaSuccess);
    EXPECT(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    EXPECT(cudaEventRecord(fork, first) == cudaSuccess);
    EXPECT(cudaStreamWaitEvent(second, fork, 0) == cudaSuccess);
    // Nothing but the calls' order says which is first.
    EXPECT(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, first) == ncclSuccess);
    EXPECT(ncclAllReduce(y.data(), y.data(), 3, ncclFloat32, ncclSum, comm, second) == ncclSuccess);
    EXPECT(cudaEventRecord(join, second) == cudaSuccess);
    EXPECT(cudaStreamWaitEvent(first, join, 0) == cudaSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT(cudaStreamEndCapture(first, &graph) == cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    EXPECT(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    constexpr int launches = 20;
    for (int i = 0; i < launches; ++i) {
      // The ranks run what is ready in other orders.
      for (int k = 0; k < rank * i; ++k) EXPECT(cudaStreamSynchronize(second) == cudaSuccess);
      EXPECT(cudaGraphLaunch(exec, first) == cudaSuccess);
      EXPECT(cudaStreamSynchronize(first) == cudaSuccess);
    }
    EXPECT(x.get()[0] == 1 << launches);
    EXPECT(y.get()[2] == 1 << launches);
    EXPECT(cudaGraphExecDestroy(exec) == cudaSuccess);
    EXPECT(cudaGraphDestroy(graph) == cudaSuccess);
    for (const cudaStream_t stream : {first, second}) EXPECT(cudaStreamDestroy(stream) == cudaSuccess);
    for (const cudaEvent_t event : {fork, join}) EXPECT(cudaEventDestroy(event) == cudaSuccess);
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }));
}

TEST_CASE("Messages larger than the shared buffers") {
  all_good(run_ranks(2, [](int rank, ncclUniqueId id) {
    ncclComm_t comm;
    EXPECT(ncclCommInitRank(&comm, 2, id, rank) == ncclSuccess);
    constexpr std::size_t count = 3'000'001;
    const DeviceArray<float> x(values<float>(rank, count)), y{std::vector<float>(count)},
        z{std::vector<float>(2 * count)};
    EXPECT(ncclAllReduce(x.data(), y.data(), count, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess);
    EXPECT(ncclAllGather(x.data(), z.data(), count, ncclFloat32, comm, nullptr) == ncclSuccess);
    const std::vector<float> sum = y.get(), both = z.get();
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT(sum[i] == reduced<float>(ncclSum, 2, i));
      EXPECT(both[i] == value<float>(0, i));
      EXPECT(both[count + i] == value<float>(1, i));
    }
    // In a group both ranks can send before they receive.
    EXPECT(ncclGroupStart() == ncclSuccess);
    EXPECT(ncclSend(x.data(), count, ncclFloat32, 1 - rank, comm, nullptr) == ncclSuccess);
    EXPECT(ncclRecv(y.data(), count, ncclFloat32, 1 - rank, comm, nullptr) == ncclSuccess);
    EXPECT(ncclGroupEnd() == ncclSuccess);
    const std::vector<float> received = y.get();
    for (std::size_t i = 0; i < count; ++i) EXPECT(received[i] == value<float>(1 - rank, i));
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
  }));
}
