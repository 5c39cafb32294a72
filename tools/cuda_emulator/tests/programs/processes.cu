// Two processes that use the same device memory: handles of allocations and events, pools whose memory is exported.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "program.h"

__global__ void add_to_all(int* values, int n, int value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) values[i] += value;
}
__global__ void count(int* counter) { atomicAdd(counter, 1); }
__global__ void put(int* value, int from) { *value = from; }

constexpr int large = 30000, rounds = 5, counting_threads = 640;

/// What a process sends to the other one.
class Channel {
 public:
  Channel() {
    if (pipe(to_child_) != 0 || pipe(to_parent_) != 0) std::exit(1);
  }
  void be_child() {
    std::swap(to_child_[0], to_parent_[0]);
    std::swap(to_child_[1], to_parent_[1]);
  }
  template <class T>
  void send(const T& value) {
    if (write(to_child_[1], &value, sizeof value) != sizeof value) std::exit(1);
  }
  template <class T>
  T receive() {
    T value;
    if (read(to_parent_[0], &value, sizeof value) != sizeof value) std::exit(1);
    return value;
  }
  template <class T>
  T swap(const T& value) {
    send(value);
    return receive<T>();
  }

 private:
  int to_child_[2], to_parent_[2];
};

cudaEvent_t interprocess_event() {
  cudaEvent_t event;
  CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming));
  return event;
}

std::vector<int> copied(const int* device, int n, cudaStream_t stream) {
  std::vector<int> values(n);
  CHECK_CUDA(cudaMemcpyAsync(values.data(), device, n * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  return values;
}

bool equal(const std::vector<int>& values, int expected, const char* what) {
  for (const int value : values) {
    if (value == expected) continue;
    std::printf("%s: %d, not %d\n", what, value, expected);
    return false;
  }
  return true;
}

/// What both processes do by turns with memory of the parent. Only the events of both order the work.
bool add_by_turns(Channel& channel, bool parent, int* values, int* counter, cudaStream_t stream,
                  cudaEvent_t own, cudaEvent_t other) {
  for (int round = 0; round < rounds; ++round) {
    for (const bool turn : {true, false}) {
      if (turn == parent) {
        add_to_all<<<20, 128, 0, stream>>>(values, large, parent ? 1 : 100);
        CHECK_CUDA(cudaEventRecord(own, stream));
        channel.swap(round);
      } else {
        channel.swap(round);  // the other process has recorded its event, and no more
        CHECK_CUDA(cudaStreamWaitEvent(stream, other));
      }
    }
    count<<<counting_threads / 64, 64, 0, stream>>>(counter);  // both at the same time
  }
  const bool right = equal(copied(values, large, stream), rounds * 101, "by turns");
  channel.swap(0);  // both have counted
  const int sum = copied(counter, 1, stream)[0];
  return right && equal({sum}, 2 * rounds * counting_threads, "counter");
}

bool parent_process(Channel& channel) {
  bool right = true;
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  // Small allocations lie close together.
  DeviceVector<int> counter(1), neighbour(1), values(large);
  CHECK_CUDA(cudaMemset(values.data(), 0, large * sizeof(int)));
  CHECK_CUDA(cudaMemset(counter.data(), 0, sizeof(int)));
  put<<<1, 1>>>(neighbour.data(), 17);
  CHECK_CUDA(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  for (int* const memory : {counter.data(), neighbour.data(), values.data()}) {
    CHECK_CUDA(cudaIpcGetMemHandle(&handle, memory));
    channel.send(handle);
  }
  void* same_process = nullptr;
  right &= cudaIpcOpenMemHandle(&same_process, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess;
  cudaGetLastError();

  const cudaEvent_t own = interprocess_event();
  cudaIpcEventHandle_t event_handle;
  CHECK_CUDA(cudaIpcGetEventHandle(&event_handle, own));
  cudaEvent_t other;
  CHECK_CUDA(cudaIpcOpenEventHandle(&other, channel.swap(event_handle)));
  CHECK_CUDA(cudaEventQuery(other));  // never recorded
  right &= add_by_turns(channel, true, values.data(), counter.data(), stream, own, other);

  // The child has recorded its event; nobody has run its work.
  channel.swap(1);
  CHECK_CUDA(cudaEventSynchronize(other));
  right &= equal(neighbour.host(), 18, "after the child's event");
  channel.swap(2);  // the child has closed the memory

  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool;
  CHECK_CUDA(cudaMemPoolCreate(&pool, &properties));
  int file = -1;
  CHECK_CUDA(cudaMemPoolExportToShareableHandle(&file, pool, cudaMemHandleTypePosixFileDescriptor, 0));
  void* pooled = nullptr;
  CHECK_CUDA(cudaMallocFromPoolAsync(&pooled, large * sizeof(int), pool, stream));
  CHECK_CUDA(cudaMemsetAsync(pooled, 0, large * sizeof(int), stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  cudaMemPoolPtrExportData exported;
  CHECK_CUDA(cudaMemPoolExportPointer(&exported, pooled));
  channel.send(getpid());
  channel.send(file);
  channel.send(exported);
  channel.swap(3);  // the child has written
  right &= equal(copied(static_cast<int*>(pooled), large, stream), 5, "memory of a pool");
  CHECK_CUDA(cudaFreeAsync(pooled, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  CHECK_CUDA(cudaMemPoolDestroy(pool));
  CHECK_CUDA(cudaEventDestroy(own));
  CHECK_CUDA(cudaEventDestroy(other));
  CHECK_CUDA(cudaStreamDestroy(stream));
  return right;
}

bool child_process(Channel& channel) {
  bool right = true;
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  DeviceVector<int> own_memory(100);  // addresses differ from the parent's
  CHECK_CUDA(cudaMemset(own_memory.data(), 0, 400));
  int* memory[3];
  cudaIpcMemHandle_t handles[3];
  for (int i = 0; i < 3; ++i) {
    handles[i] = channel.receive<cudaIpcMemHandle_t>();
    CHECK_CUDA(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&memory[i]), handles[i],
                                    cudaIpcMemLazyEnablePeerAccess));
  }
  void* again = nullptr;
  CHECK_CUDA(cudaIpcOpenMemHandle(&again, handles[1], cudaIpcMemLazyEnablePeerAccess));
  right &= again == memory[1];
  CHECK_CUDA(cudaIpcCloseMemHandle(again));
  right &= equal(copied(memory[1], 1, stream), 17, "the parent's value");
  cudaPointerAttributes attributes;
  CHECK_CUDA(cudaPointerGetAttributes(&attributes, memory[2] + 1));
  right &= attributes.type == cudaMemoryTypeDevice;

  const cudaEvent_t own = interprocess_event();
  cudaIpcEventHandle_t event_handle;
  CHECK_CUDA(cudaIpcGetEventHandle(&event_handle, own));
  cudaEvent_t other;
  CHECK_CUDA(cudaIpcOpenEventHandle(&other, channel.swap(event_handle)));
  right &= add_by_turns(channel, false, memory[2], memory[0], stream, own, other);

  put<<<1, 1, 0, stream>>>(memory[1], 18);
  CHECK_CUDA(cudaEventRecord(own, stream));
  channel.swap(1);
  CHECK_CUDA(cudaEventSynchronize(own));
  for (int* const opened : memory) CHECK_CUDA(cudaIpcCloseMemHandle(opened));
  right &= cudaIpcCloseMemHandle(memory[0]) != cudaSuccess;
  cudaGetLastError();
  channel.swap(2);

  const std::string process = std::to_string(channel.receive<pid_t>());
  const std::string file = std::to_string(channel.receive<int>());
  FILE* const opened = std::fopen(("/proc/" + process + "/fd/" + file).c_str(), "r+");
  if (!opened) std::exit(1);
  cudaMemPool_t pool;
  CHECK_CUDA(cudaMemPoolImportFromShareableHandle(
      &pool, reinterpret_cast<void*>(static_cast<std::intptr_t>(fileno(opened))),
      cudaMemHandleTypePosixFileDescriptor, 0));
  std::fclose(opened);
  cudaMemPoolPtrExportData exported = channel.receive<cudaMemPoolPtrExportData>();
  void* pooled = nullptr;
  CHECK_CUDA(cudaMemPoolImportPointer(&pooled, pool, &exported));
  void* none = nullptr;
  right &= cudaMallocFromPoolAsync(&none, 16, pool, stream) != cudaSuccess;
  cudaGetLastError();
  add_to_all<<<20, 128, 0, stream>>>(static_cast<int*>(pooled), large, 5);
  CHECK_CUDA(cudaFreeAsync(pooled, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  channel.swap(3);
  CHECK_CUDA(cudaMemPoolDestroy(pool));
  CHECK_CUDA(cudaEventDestroy(own));
  CHECK_CUDA(cudaEventDestroy(other));
  CHECK_CUDA(cudaStreamDestroy(stream));
  return right;
}

int main() {
  Channel channel;
  const pid_t child = fork();  // before the first use of CUDA
  if (child < 0) return 1;
  if (child == 0) {
    channel.be_child();
    return child_process(channel) ? 0 : 1;
  }
  const bool right = parent_process(channel);
  int status = 0;
  waitpid(child, &status, 0);
  return right && status == 0 ? 0 : 1;
}
