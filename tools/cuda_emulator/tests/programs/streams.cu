// Streams, events, graphs, pools, kinds of memory and copies. Needs two devices.
#include <algorithm>
#include <numeric>

#include "program.h"

struct Stream {
  cudaStream_t stream;
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, flags));
  }
  ~Stream() { CHECK_CUDA(cudaStreamDestroy(stream)); }
  Stream(const Stream&) = delete;
  operator cudaStream_t() const { return stream; }
  void wait() const { CHECK_CUDA(cudaStreamSynchronize(stream)); }
};
struct Event {
  cudaEvent_t event;
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    CHECK_CUDA(cudaEventCreateWithFlags(&event, flags));
  }
  ~Event() { CHECK_CUDA(cudaEventDestroy(event)); }
  Event(const Event&) = delete;
  operator cudaEvent_t() const { return event; }
};
template <class T>
struct Pinned {
  T* data;
  explicit Pinned(int size) { CHECK_CUDA(cudaMallocHost(&data, size * sizeof(T))); }
  ~Pinned() { CHECK_CUDA(cudaFreeHost(data)); }
  Pinned(const Pinned&) = delete;
};

__global__ void fill(int* out, int n, int value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = value + i;
}
/// out = factor * in + offset; in and out may be the same.
__global__ void scale_and_shift(const int* in, int* out, int n, int factor, int offset) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = factor * in[i] + offset;
}
__global__ void add(const int* a, const int* b, int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

// Events.

bool two_streams_with_events() {
  // One stream brings pieces into two buffers by turns; the other computes and takes the results back.
  const int n = 500, pieces = 7;
  Pinned<int> in(n * pieces), out(n * pieces);
  std::iota(in.data, in.data + n * pieces, 3);
  DeviceVector<int> buffers(2 * n), results(2 * n);
  Stream copier, worker;
  Event arrived[2], used[2], first(cudaEventDefault), last(cudaEventDefault);
  CHECK_CUDA(cudaEventRecord(first, copier));
  for (int p = 0; p < pieces; ++p) {
    int* const buffer = buffers.data() + p % 2 * n;
    int* const result = results.data() + p % 2 * n;
    CHECK_CUDA(cudaStreamWaitEvent(copier, used[p % 2], 0));  // an event never recorded counts as done
    CHECK_CUDA(cudaMemcpyAsync(buffer, in.data + p * n, n * sizeof(int), cudaMemcpyHostToDevice, copier));
    CHECK_CUDA(cudaEventRecord(arrived[p % 2], copier));
    CHECK_CUDA(cudaStreamWaitEvent(worker, arrived[p % 2], 0));
    scale_and_shift<<<(n + 63) / 64, 64, 0, worker>>>(buffer, result, n, p, -1);
    CHECK_CUDA(cudaEventRecord(used[p % 2], worker));
    CHECK_CUDA(cudaMemcpyAsync(out.data + p * n, result, n * sizeof(int), cudaMemcpyDeviceToHost, worker));
  }
  CHECK_CUDA(cudaEventRecord(last, worker));
  CHECK_CUDA(cudaEventSynchronize(last));
  float milliseconds = -1;
  CHECK_CUDA(cudaEventElapsedTime(&milliseconds, first, last));
  bool right =
      milliseconds >= 0 && cudaEventQuery(last) == cudaSuccess && cudaStreamQuery(worker) == cudaSuccess;
  for (int i = 0; i < n * pieces; ++i) right = right && out.data[i] == (i / n) * (i + 3) - 1;
  return right;
}

bool event_of_a_launch() {
  // The launch itself records the event, which is all that orders the two streams.
  const int n = 5000;
  DeviceVector<int> values(n), result(n);
  Stream first, second;
  Event triggered;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticEvent;
  attribute.val.programmaticEvent.event = triggered;
  cudaLaunchConfig_t config{};
  config.gridDim = 10;
  config.blockDim = 128;
  config.stream = first;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CHECK_CUDA(cudaLaunchKernelEx(&config, fill, values.data(), n, 7));
  CHECK_CUDA(cudaStreamWaitEvent(second, triggered));
  scale_and_shift<<<(n + 127) / 128, 128, 0, second>>>(values.data(), result.data(), n, 2, 1);
  second.wait();
  const std::vector<int> host = result.host();
  for (int i = 0; i < n; ++i) {
    if (host[i] != 2 * (7 + i) + 1) return false;
  }
  first.wait();
  return true;
}

bool default_stream_waits_for_all() {
  const int n = 300;
  DeviceVector<int> a(n), b(n), c(n);
  Stream one(cudaStreamDefault), two(cudaStreamDefault);
  fill<<<2, 64, 0, one>>>(a.data(), n, 1);
  fill<<<2, 64, 0, two>>>(b.data(), n, 10);
  add<<<3, 128>>>(a.data(), b.data(), c.data(), n);                  // the default stream: after both
  scale_and_shift<<<3, 128, 0, one>>>(c.data(), c.data(), n, 2, 0);  // after the default stream
  one.wait();
  const std::vector<int> found = c.host();
  for (int i = 0; i < n; ++i)
    if (found[i] != 2 * (11 + 2 * i)) return false;
  return true;
}

// Graphs.

struct Log {
  std::vector<int> entries;
};
void CUDART_CB append(void* log) {
  std::vector<int>& entries = static_cast<Log*>(log)->entries;
  entries.push_back(static_cast<int>(entries.size()));
}

/// Captures: memory cleared, two branches from it, their sum to the host, an entry in the log.
cudaGraph_t capture(int* a, int* b, int* sum, int* out, int n, int factor, Log* log) {
  Stream left, right;
  Event fork, join;
  CHECK_CUDA(cudaStreamBeginCapture(left, cudaStreamCaptureModeThreadLocal));
  CHECK_CUDA(cudaMemsetAsync(a, 0, n * sizeof(int), left));
  CHECK_CUDA(cudaEventRecord(fork, left));
  CHECK_CUDA(cudaStreamWaitEvent(right, fork, 0));
  scale_and_shift<<<(n + 127) / 128, 128, 0, left>>>(a, a, n, 1, factor);
  fill<<<1, 128, 0, right>>>(b, n, factor);
  CHECK_CUDA(cudaEventRecord(join, right));
  CHECK_CUDA(cudaStreamWaitEvent(left, join, 0));
  add<<<(n + 127) / 128, 128, 0, left>>>(a, b, sum, n);
  CHECK_CUDA(cudaMemcpyAsync(out, sum, n * sizeof(int), cudaMemcpyDeviceToHost, left));
  CHECK_CUDA(cudaLaunchHostFunc(left, append, log));
  cudaStreamCaptureStatus status;
  CHECK_CUDA(cudaStreamIsCapturing(right, &status));
  if (status != cudaStreamCaptureStatusActive) std::exit(1);
  cudaGraph_t graph;
  CHECK_CUDA(cudaStreamEndCapture(left, &graph));
  return graph;
}
bool graph_by_capture() {
  const int n = 400;
  Pinned<int> out(n);
  DeviceVector<int> a(n), b(n), sum(n);
  Log log;
  Stream stream;
  bool right = true;
  cudaGraphExec_t executable = nullptr;
  for (int factor = 5; factor < 8; ++factor) {
    const cudaGraph_t graph = capture(a.data(), b.data(), sum.data(), out.data, n, factor, &log);
    std::size_t nodes = 0;
    CHECK_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    right = right && nodes == 6 && (factor > 5 || log.entries.empty());
    if (executable == nullptr) {
      CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    } else {
      cudaGraphExecUpdateResultInfo info;
      CHECK_CUDA(cudaGraphExecUpdate(executable, graph, &info));
    }
    CHECK_CUDA(cudaGraphDestroy(graph));
    for (int launch = 0; launch < 2; ++launch) {
      std::fill(out.data, out.data + n, -1);
      CHECK_CUDA(cudaGraphLaunch(executable, stream));
      stream.wait();
      for (int i = 0; i < n; ++i) right = right && out.data[i] == factor + factor + i;
    }
  }
  CHECK_CUDA(cudaGraphExecDestroy(executable));
  return right && log.entries == std::vector<int>{0, 1, 2, 3, 4, 5};
}

bool graph_by_nodes() {
  int n = 200, factor = 3, offset = 4, value = 100;
  DeviceVector<int> device(n);
  int* data = device.data();
  std::vector<int> out(n, -1);
  cudaGraph_t graph, child;
  CHECK_CUDA(cudaGraphCreate(&graph, 0));
  CHECK_CUDA(cudaGraphCreate(&child, 0));
  void* fill_arguments[] = {&data, &n, &value};
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void*>(fill);
  kernel.gridDim = dim3(2);
  kernel.blockDim = dim3(32);
  kernel.kernelParams = fill_arguments;
  cudaGraphNode_t filled, scaled, copied, called, inner;
  CHECK_CUDA(cudaGraphAddKernelNode(&filled, graph, nullptr, 0, &kernel));
  void* arguments[] = {&data, &data, &n, &factor, &offset};
  kernel.func = reinterpret_cast<void*>(scale_and_shift);
  kernel.gridDim = dim3(7);
  kernel.kernelParams = arguments;
  CHECK_CUDA(cudaGraphAddKernelNode(&inner, child, nullptr, 0, &kernel));
  CHECK_CUDA(cudaGraphAddChildGraphNode(&called, graph, &filled, 1, child));
  CHECK_CUDA(cudaGraphAddKernelNode(&scaled, graph, nullptr, 0, &kernel));
  CHECK_CUDA(cudaGraphAddDependencies(graph, &called, &scaled, nullptr, 1));
  CHECK_CUDA(cudaGraphAddMemcpyNode1D(&copied, graph, &scaled, 1, out.data(), data, n * sizeof(int),
                                      cudaMemcpyDeviceToHost));
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  const auto launch = [&](auto result) {
    CHECK_CUDA(cudaGraphLaunch(executable, nullptr));
    CHECK_CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < n; ++i)
      if (out[i] != result(i)) return false;
    return true;
  };
  bool right = launch([](int i) { return 3 * (3 * (100 + i) + 4) + 4; });
  // Parameters of one node anew: the other keeps its own.
  factor = -2, offset = 1;
  CHECK_CUDA(cudaGraphExecKernelNodeSetParams(executable, scaled, &kernel));
  right = right && launch([](int i) { return -2 * (3 * (100 + i) + 4) + 1; });
  CHECK_CUDA(cudaGraphExecMemcpyNodeSetParams1D(executable, copied, out.data(), data + 100, 100 * sizeof(int),
                                                cudaMemcpyDeviceToHost));
  std::fill(out.begin(), out.end(), -1);
  right = right && launch([](int i) { return i < 100 ? -2 * (3 * (200 + i) + 4) + 1 : -1; });
  CHECK_CUDA(cudaGraphExecDestroy(executable));
  cudaGraphNodeType type;
  CHECK_CUDA(cudaGraphNodeGetType(called, &type));
  cudaGraph_t clone;
  CHECK_CUDA(cudaGraphClone(&clone, graph));
  std::size_t edges = 0;
  CHECK_CUDA(cudaGraphGetEdges(clone, nullptr, nullptr, nullptr, &edges));
  for (const cudaGraph_t g : {clone, child, graph}) CHECK_CUDA(cudaGraphDestroy(g));
  return right && type == cudaGraphNodeTypeGraph && edges == 3;
}

// Memory from pools.

bool stream_ordered_memory() {
  const int n = 1000;
  Stream one, two;
  Event done;
  Pinned<int> out(n);
  bool right = true;
  for (int round = 0; round < 4; ++round) {
    int *a, *b;
    CHECK_CUDA(cudaMallocAsync(&a, n * sizeof(int), one));
    CHECK_CUDA(cudaMallocAsync(&b, n * sizeof(int), one));
    fill<<<3, 96, 0, one>>>(a, n, round);
    scale_and_shift<<<(n + 255) / 256, 256, 0, one>>>(a, b, n, 7, 0);
    CHECK_CUDA(cudaFreeAsync(a, one));  // the memory may serve the next allocation of this stream
    int* c;
    CHECK_CUDA(cudaMallocAsync(&c, n * sizeof(int), one));
    CHECK_CUDA(cudaMemsetAsync(c, 0xff, n * sizeof(int), one));
    CHECK_CUDA(cudaEventRecord(done, one));
    CHECK_CUDA(cudaStreamWaitEvent(two, done, 0));
    add<<<(n + 255) / 256, 256, 0, two>>>(b, c, c, n);
    CHECK_CUDA(cudaMemcpyAsync(out.data, c, n * sizeof(int), cudaMemcpyDeviceToHost, two));
    CHECK_CUDA(cudaFreeAsync(b, two));
    CHECK_CUDA(cudaFreeAsync(c, two));
    two.wait();
    for (int i = 0; i < n; ++i) right = right && out.data[i] == 7 * (round + i) - 1;
  }
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool;
  CHECK_CUDA(cudaMemPoolCreate(&pool, &properties));
  std::uint64_t keep = ~0ull, used = 0, reserved = 0;
  CHECK_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  int* d;
  CHECK_CUDA(cudaMallocFromPoolAsync(&d, 5'000'000, pool, one));
  CHECK_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  right = right && used >= 5'000'000;
  CHECK_CUDA(cudaFreeAsync(d, one));
  one.wait();
  CHECK_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  CHECK_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  right = right && used == 0 && reserved >= 5'000'000;
  CHECK_CUDA(cudaMemPoolTrimTo(pool, 0));
  CHECK_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  CHECK_CUDA(cudaMemPoolDestroy(pool));
  return right && reserved == 0;
}

// Host functions.

struct Sum {
  const int* values;
  int n;
  long long result;
};
void CUDART_CB add_up(void* sum) {
  Sum& s = *static_cast<Sum*>(sum);
  s.result = std::accumulate(s.values, s.values + s.n, s.result);
}
void CUDART_CB finished(cudaStream_t, cudaError_t status, void* sum) {
  if (status == cudaSuccess) static_cast<Sum*>(sum)->result *= 2;
}
bool host_functions() {
  const int n = 256;
  Pinned<int> out(n), back(n);
  DeviceVector<int> device(n);
  Stream stream;
  Sum sum = {out.data, n, 0};
  for (int round = 0; round < 3; ++round) {
    fill<<<2, 64, 0, stream>>>(device.data(), n, round);
    CHECK_CUDA(cudaMemcpyAsync(out.data, device.data(), n * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaLaunchHostFunc(stream, add_up, &sum));
    CHECK_CUDA(cudaStreamAddCallback(stream, finished, &sum, 0));
  }
  stream.wait();
  const long long s = n * (n - 1) / 2;
  return sum.result == 2 * (2 * (2 * s + s + n) + s + 2 * n);
}

// Kinds of memory.

__managed__ int managed_counter = 40;
__device__ int symbol[16];

__global__ void count(int* mapped, int* managed, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  mapped[i] += managed[i];
  managed[i] = i;
  atomicAdd(&managed_counter, 1);
  atomicAdd(&symbol[i % 16], 1);
}
bool kinds_of_memory() {
  const int n = 128;
  int *mapped, *mapped_device, *managed;
  CHECK_CUDA(cudaHostAlloc(&mapped, n * sizeof(int), cudaHostAllocMapped));
  CHECK_CUDA(cudaHostGetDevicePointer(&mapped_device, mapped, 0));
  CHECK_CUDA(cudaMallocManaged(&managed, n * sizeof(int)));
  std::vector<int> registered(4096, 9);
  CHECK_CUDA(cudaHostRegister(registered.data(), registered.size() * sizeof(int), cudaHostRegisterDefault));
  std::iota(mapped, mapped + n, 1);
  std::fill(managed, managed + n, 1000);
  managed_counter += 2;
  CHECK_CUDA(cudaMemPrefetchAsync(managed, n * sizeof(int), cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0,
                                  nullptr));
  const int ones[16] = {1, 2, 3};
  CHECK_CUDA(cudaMemcpyToSymbol(symbol, ones, sizeof ones));
  count<<<4, 32>>>(mapped_device, managed, n);
  CHECK_CUDA(cudaMemcpyAsync(registered.data(), managed, n * sizeof(int), cudaMemcpyDefault, nullptr));
  CHECK_CUDA(cudaDeviceSynchronize());
  bool right = managed_counter == 42 + n;
  for (int i = 0; i < n; ++i) right = right && mapped[i] == i + 1001 && managed[i] == i && registered[i] == i;
  int counts[4];
  CHECK_CUDA(cudaMemcpyFromSymbol(counts, symbol, sizeof counts, 2 * sizeof(int)));
  right = right && registered[n] == 9 && counts[0] == 11 && counts[1] == 8;
  cudaPointerAttributes of[4];
  void* address = nullptr;
  std::size_t size = 0;
  CHECK_CUDA(cudaGetSymbolAddress(&address, symbol));
  CHECK_CUDA(cudaGetSymbolSize(&size, symbol));
  CHECK_CUDA(cudaPointerGetAttributes(&of[0], mapped));
  CHECK_CUDA(cudaPointerGetAttributes(&of[1], managed + 5));
  CHECK_CUDA(cudaPointerGetAttributes(&of[2], address));
  CHECK_CUDA(cudaPointerGetAttributes(&of[3], &size));
  right = right && size == sizeof symbol && of[0].type == cudaMemoryTypeHost &&
          of[0].devicePointer == mapped_device && of[1].type == cudaMemoryTypeManaged &&
          of[2].type == cudaMemoryTypeDevice && of[3].type == cudaMemoryTypeUnregistered;
  CHECK_CUDA(cudaHostUnregister(registered.data()));
  CHECK_CUDA(cudaFreeHost(mapped));
  CHECK_CUDA(cudaFree(managed));
  return right;
}

// Copies.

bool copies_of_rectangles() {
  const int width = 37, height = 21;
  const std::vector<unsigned> words = random_words(width * height);
  const std::vector<int> image(words.begin(), words.end());
  int* device;
  std::size_t pitch = 0;
  Stream stream(cudaStreamDefault);  // ordered after cudaMemcpy2D, whose transfer may outlast the call
  CHECK_CUDA(cudaMallocPitch(&device, &pitch, width * sizeof(int), height));
  CHECK_CUDA(cudaMemset2DAsync(device, pitch, 0x11, width * sizeof(int), height, stream));
  stream.wait();
  // A window of 20 x 10 at (5, 3) of the image goes to (1, 2) on the device.
  CHECK_CUDA(cudaMemcpy2D(reinterpret_cast<char*>(device) + 2 * pitch + sizeof(int), pitch,
                          &image[3 * width + 5], width * sizeof(int), 20 * sizeof(int), 10,
                          cudaMemcpyHostToDevice));
  std::vector<int> back(width * height, -1);
  CHECK_CUDA(cudaMemcpy2DAsync(back.data(), width * sizeof(int), device, pitch, width * sizeof(int), height,
                               cudaMemcpyDeviceToHost, stream));
  stream.wait();
  bool right = pitch >= width * sizeof(int) && pitch % 32 == 0;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      const bool inside = x >= 1 && x < 21 && y >= 2 && y < 12;
      right = right && back[y * width + x] == (inside ? image[(y + 1) * width + x + 4] : 0x11111111);
    }
  CHECK_CUDA(cudaFree(device));
  // A box of 3 x 4 x 5 from the middle of one of 8 x 7 x 6.
  cudaPitchedPtr box;
  CHECK_CUDA(cudaMalloc3D(&box, make_cudaExtent(8, 7, 6)));
  std::vector<unsigned char> bytes(8 * 7 * 6), part(3 * 4 * 5);
  std::iota(bytes.begin(), bytes.end(), 0);
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = make_cudaPitchedPtr(bytes.data(), 8, 8, 7);
  copy.dstPtr = box;
  copy.extent = make_cudaExtent(8, 7, 6);
  copy.kind = cudaMemcpyHostToDevice;
  CHECK_CUDA(cudaMemcpy3D(&copy));
  copy = {};
  copy.srcPtr = box;
  copy.srcPos = make_cudaPos(2, 1, 1);
  copy.dstPtr = make_cudaPitchedPtr(part.data(), 3, 3, 4);
  copy.extent = make_cudaExtent(3, 4, 5);
  copy.kind = cudaMemcpyDeviceToHost;
  CHECK_CUDA(cudaMemcpy3D(&copy));
  for (int i = 0; i < 3 * 4 * 5; ++i)
    right = right && part[i] == bytes[(i / 12 + 1) * 56 + (i / 3 % 4 + 1) * 8 + i % 3 + 2];
  CHECK_CUDA(cudaFree(box.ptr));
  return right;
}

// Priorities, occupancy, attributes.

__global__ void __launch_bounds__(256) with_static_memory(int* out) {
  __shared__ int s[4096];
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) s[i] = i;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = s[4095 - threadIdx.x];
}
bool priorities_and_occupancy() {
  int least, greatest, priority, blocks = 0, grid = 0, block = 0;
  CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t urgent;
  CHECK_CUDA(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
  CHECK_CUDA(cudaStreamGetPriority(urgent, &priority));
  bool right = least == 0 && greatest < 0 && priority == greatest;
  CHECK_CUDA(cudaOccupancyMaxPotentialBlockSize(&grid, &block, with_static_memory));
  CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, with_static_memory, 256, 16 << 10));
  cudaFuncAttributes attributes;
  CHECK_CUDA(cudaFuncGetAttributes(&attributes, with_static_memory));
  cudaDeviceProp properties;
  CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
  // 16 KiB static, 16 KiB dynamic and 1 KiB of the system, of 228 KiB.
  right = right && blocks == 6 && block == 256 && grid == 8 * properties.multiProcessorCount &&
          attributes.sharedSizeBytes == 4096 * sizeof(int) && attributes.maxThreadsPerBlock == 256 &&
          attributes.numRegs > 0;
  // Two blocks can have 48 KiB each, less the static part. Eight blocks must share 228 KiB.
  std::size_t available = 0;
  CHECK_CUDA(cudaOccupancyAvailableDynamicSMemPerBlock(&available, with_static_memory, 2, 256));
  right = right && available == 32 << 10;
  CHECK_CUDA(cudaOccupancyAvailableDynamicSMemPerBlock(&available, with_static_memory, 8, 256));
  right = right && available > 0 && available <= (228 << 10) / 8 - (16 << 10);
  DeviceVector<int> out(2 * 256);
  with_static_memory<<<2, 256, 0, urgent>>>(out.data());
  CHECK_CUDA(cudaStreamSynchronize(urgent));
  const std::vector<int> found = out.host();
  for (int i = 0; i < 512; ++i) right = right && found[i] == 4095 - i % 256;
  CHECK_CUDA(cudaStreamDestroy(urgent));
  return right;
}

// Two devices.

__global__ void count_up() { atomicAdd(&managed_counter, 1); }
bool two_devices() {
  int devices = 0, reachable = 0, current = -1;
  CHECK_CUDA(cudaGetDeviceCount(&devices));
  if (devices < 2) {
    std::printf("needs two devices\n");
    return false;
  }
  const int n = 600;
  bool right = true;
  CHECK_CUDA(cudaSetDevice(1));
  int* there;
  CHECK_CUDA(cudaMalloc(&there, n * sizeof(int)));
  Stream stream;
  Event ready;
  fill<<<3, 64, 0, stream>>>(there, n, 7);
  CHECK_CUDA(cudaEventRecord(ready, stream));
  cudaPointerAttributes attributes;
  CHECK_CUDA(cudaPointerGetAttributes(&attributes, there));
  right = right && attributes.device == 1;
  CHECK_CUDA(cudaSetDevice(0));
  CHECK_CUDA(cudaDeviceCanAccessPeer(&reachable, 0, 1));
  CHECK_CUDA(cudaDeviceEnablePeerAccess(1, 0));
  right = right && reachable == 1 && cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled;
  cudaGetLastError();
  {
    Stream here;
    DeviceVector<int> copy(n), sum(n);
    CHECK_CUDA(cudaStreamWaitEvent(here, ready, 0));
    CHECK_CUDA(cudaMemcpyPeerAsync(copy.data(), 0, there, 1, n * sizeof(int), here));
    add<<<(n + 63) / 64, 64, 0, here>>>(copy.data(), there, sum.data(),
                                        n);  // reads the other device's memory
    here.wait();
    const std::vector<int> found = sum.host();
    for (int i = 0; i < n; ++i) right = right && found[i] == 2 * (7 + i);
  }
  const int counted = managed_counter;  // one variable for all devices
  for (const int device : {1, 0}) {
    CHECK_CUDA(cudaSetDevice(device));
    count_up<<<2, 32>>>();
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  right = right && managed_counter == counted + 128;
  CHECK_CUDA(cudaDeviceDisablePeerAccess(1));
  CHECK_CUDA(cudaFree(there));
  CHECK_CUDA(cudaGetDevice(&current));
  return right && current == 0;
}

int main(int argc, char** argv) {
  return run_programs({{"two_streams_with_events", two_streams_with_events},
                       {"event_of_a_launch", event_of_a_launch},
                       {"default_stream_waits_for_all", default_stream_waits_for_all},
                       {"graph_by_capture", graph_by_capture},
                       {"graph_by_nodes", graph_by_nodes},
                       {"stream_ordered_memory", stream_ordered_memory},
                       {"host_functions", host_functions},
                       {"kinds_of_memory", kinds_of_memory},
                       {"copies_of_rectangles", copies_of_rectangles},
                       {"priorities_and_occupancy", priorities_and_occupancy},
                       {"two_devices", two_devices}},
                      argc, argv);
}
