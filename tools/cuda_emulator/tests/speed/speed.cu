// Small kernels of the kinds that ordinary programs are made of, each launched alone; prints the CPU seconds that each took. The script
// `speed` beside this file turns them into lane-instructions a second.
//   speed [name...]   runs all kernels, or those whose names are given
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <cstdio>
#include <cstring>
#include <ctime>

namespace {

constexpr int n = 1 << 18;  // elements of every array

struct Data {
  float *a, *b, *c;
  unsigned *index, *count;
  unsigned long long* wide;
  double* d;
  unsigned char *bytes, *more_bytes;
  __half *h, *g;
};

__device__ int thread() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

__global__ void fill(Data data) {
  const int i = thread();
  const unsigned random = static_cast<unsigned>(i) * 2654435761u;
  data.a[i] = data.b[i] = data.c[i] = static_cast<float>(random >> 20) * 1e-3f;
  data.index[i] = (random >> 7) % n;
  data.count[i] = 0;
  data.wide[i] = 0;
  data.d[i] = i * 1e-6;
  data.bytes[i] = data.more_bytes[i] = static_cast<unsigned char>(random >> 24);
  data.h[i] = data.g[i] = __float2half(static_cast<float>(random >> 28) * 0.1f);
}

__global__ void axpy(Data data) { data.c[thread()] = 2.5f * data.a[thread()] + data.b[thread()]; }

__global__ void registers(Data data) {
  float x = data.a[thread()], y = data.b[thread()];
  for (int k = 0; k < 64; ++k) x = fmaf(x, y, 0.25f), y = y * 0.5f + x;
  data.c[thread()] = x + y;
}

__global__ void functions(Data data) {
  float x = data.a[thread()];
  for (int k = 0; k < 4; ++k) x = expf(-x) + sinf(x) + rsqrtf(x + 1.0f) + logf(x + 2.0f);
  data.c[thread()] = x;
}

__global__ void gather(Data data) {
  float sum = 0;
  for (int k = 0; k < 4; ++k) sum += data.a[(data.index[thread()] + k * 9973) % n];
  data.c[thread()] = sum;
}

__global__ void scatter(Data data) { data.c[(thread() * 40503u + 7) % n] = data.a[thread()]; }

__global__ void histogram(Data data) { atomicAdd(&data.count[data.index[thread()] % 4096], 1u); }

__global__ void histogram_returning(Data data) {
  data.c[thread()] = static_cast<float>(atomicAdd(&data.count[data.index[thread()] % 4096], 1u));
}

__global__ void histogram_shared(Data data) {
  __shared__ unsigned bins[256];
  for (unsigned k = threadIdx.x; k < 256; k += blockDim.x) bins[k] = 0;
  __syncthreads();
  for (int k = 0; k < 8; ++k) atomicAdd(&bins[data.index[(thread() + k * 256) % n] % 256], 1u);
  __syncthreads();
  for (unsigned k = threadIdx.x; k < 256; k += blockDim.x) atomicAdd(&data.count[k], bins[k]);
}

__global__ void atomics_64(Data data) {
  atomicAdd(&data.wide[data.index[thread()] % 4096], 3ull);
  atomicMax(&data.wide[4096 + data.index[thread()] % 4096], static_cast<unsigned long long>(thread()));
}

__global__ void atomics_one_place(Data data) { atomicAdd(&data.c[0], 1.0f); }

__global__ void compare_and_swap(Data data) {
  unsigned long long* const place = &data.wide[data.index[thread()]];
  unsigned long long old = *reinterpret_cast<volatile unsigned long long*>(place), seen;
  do {
    seen = old;
    old = atomicCAS(place, seen, seen + 1);
  } while (old != seen);
}

__global__ void half_pairs(Data data) {
  const __half2* h = reinterpret_cast<const __half2*>(data.h);
  __half2 x = h[thread() % (n / 2)], y = __float2half2_rn(0.5f);
  for (int k = 0; k < 32; ++k) x = __hfma2(x, y, y), y = __hadd2(__hmul2(x, y), x);
  reinterpret_cast<__half2*>(data.g)[thread()] = __hmax2(x, y);
}

__global__ void bfloat_pairs(Data data) {
  __nv_bfloat162 x = __float2bfloat162_rn(data.a[thread()]), y = __float2bfloat162_rn(0.5f);
  for (int k = 0; k < 32; ++k) x = __hfma2(x, y, y), y = __hadd2(__hmul2(x, y), x);
  data.c[thread()] = __bfloat162float(x.x) + __bfloat162float(y.y);
}

__global__ void doubles(Data data) {
  double x = data.d[thread()], y = 1.0;
  for (int k = 0; k < 32; ++k) x = fma(x, 0.5, y), y = y * x - 0.25;
  data.d[thread()] = x / (y * y + 1.0) + sqrt(x * x);
}

__global__ void bytes(Data data) {
  unsigned sum = 0;
  for (int k = 0; k < 8; ++k) sum += data.bytes[(thread() + k * 1000) % n];
  data.more_bytes[thread()] = static_cast<unsigned char>(sum);
}

__global__ void bytes_shared(Data data) {
  __shared__ unsigned char tile[256];
  unsigned sum = 0;
  for (int k = 0; k < 8; ++k) {
    tile[threadIdx.x] = data.bytes[(thread() + k * 256) % n];
    __syncthreads();
    sum += tile[(threadIdx.x + 1) % 256];
    __syncthreads();
  }
  data.more_bytes[thread()] = static_cast<unsigned char>(sum);
}

__global__ void strided_bytes(Data data) {
  unsigned sum = 0;
  for (int k = 0; k < 8; ++k) sum += data.bytes[(thread() * 8 + k) % n];
  data.count[thread()] = sum;
}

__global__ void divergent(Data data) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  unsigned x = data.index[thread()];
  for (int k = 0; k < lane; ++k) x = x & 1 ? 3 * x + 1 : x / 2 + static_cast<unsigned>(k) * 7;
  switch (lane % 8) {
    case 0:
      x += data.index[x % n];
      break;
    case 1:
      x *= 77;
      break;
    case 2:
      x ^= x >> 3;
      break;
    case 3:
      x = __popc(x);
      break;
    case 4:
      x = __brev(x) + 1;
      break;
    case 5:
      x -= data.index[(x + 1) % n];
      break;
    default:
      x = ~x;
  }
  data.count[thread()] = x;
}

__global__ void collatz(Data data) {
  unsigned x = data.index[thread()] % 1000 + 1, steps = 0;
  while (x != 1 && steps < 100) x = x & 1 ? 3 * x + 1 : x / 2, ++steps;
  data.count[thread()] = steps;
}

__global__ void local_array(Data data) {
  unsigned values[32];
  for (int k = 0; k < 32; ++k) values[k] = data.index[(thread() + k) % n];
  unsigned sum = 0;
  for (int k = 0; k < 32; ++k) sum += values[(values[k] + sum) % 32];
  data.count[thread()] = sum;
}

__device__ __noinline__ float called(float x, float y) { return x * y + 0.5f; }
__global__ void calls(Data data) {
  float x = data.a[thread()];
  for (int k = 0; k < 16; ++k) x = called(x, 0.25f);
  data.c[thread()] = x;
}

__global__ void shuffles(Data data) {
  float x = data.a[thread()];
  for (int k = 0; k < 4; ++k)
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  data.c[thread()] = x;
}

__global__ void votes(Data data) {
  unsigned x = data.index[thread()];
  for (int k = 0; k < 16; ++k) {
    x += __ballot_sync(~0u, x >> k & 1);
    x ^= __any_sync(~0u, x == 12345);
    x += __reduce_add_sync(~0u, x & 15);
  }
  data.count[thread()] = x;
}

__global__ void block_reduction(Data data) {
  __shared__ float sums[256];
  sums[threadIdx.x] = data.a[thread()];
  __syncthreads();
  for (unsigned step = 128; step; step /= 2) {
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) data.c[blockIdx.x] = sums[0];
}

__global__ void transpose(Data data) {
  __shared__ float tile[32][33];
  const unsigned x = threadIdx.x % 32, y = threadIdx.x / 32, tiles = 512 / 32;
  const unsigned bx = blockIdx.x % tiles, by = blockIdx.x / tiles;
  for (unsigned k = 0; k < 32; k += 8) tile[y + k][x] = data.a[(by * 32 + y + k) * 512 + bx * 32 + x];
  __syncthreads();
  for (unsigned k = 0; k < 32; k += 8) data.c[(bx * 32 + y + k) * 512 + by * 32 + x] = tile[x][y + k];
}

// Two stages of tiles that cp.async brings.
__global__ void async_copies(Data data) {
  __shared__ float4 tile[2][256];
  const float4* from = reinterpret_cast<const float4*>(data.a);
  float sum = 0;
  const auto fetch = [&](int k) {
    __pipeline_memcpy_async(&tile[k % 2][threadIdx.x], &from[(thread() + k * 256) % (n / 4)], 16);
    __pipeline_commit();
  };
  fetch(0);
  for (int k = 0; k < 16; ++k) {
    if (k + 1 < 16) fetch(k + 1);
    __pipeline_wait_prior(k + 1 < 16 ? 1 : 0);
    __syncthreads();
    sum += tile[k % 2][(threadIdx.x + 5) % 256].x;
    __syncthreads();
  }
  data.c[thread()] = sum;
}

// One warp makes a tile of 16 x 16 with k = 256.
__global__ void wmma_tiles(Data data) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, __half, row_major> a;
  fragment<matrix_b, 16, 16, 16, __half, col_major> b;
  fragment<accumulator, 16, 16, 16, float> c;
  fill_fragment(c, 0.0f);
  for (int k = 0; k < 256; k += 16) {
    load_matrix_sync(a, data.h + k, 256);
    load_matrix_sync(b, data.h + 4096 + k, 256);
    mma_sync(c, a, b, c);
  }
  store_matrix_sync(data.c + thread() / 32 * 256, c, 16, mem_row_major);
}

// ldmatrix from shared memory and mma.m16n8k16.
__global__ void mma_pipeline(Data data) {
  __shared__ alignas(16) __half tile[2][64 * 64];
  float sum[4] = {};
  const unsigned lane = threadIdx.x % 32;
  for (int step = 0; step < 4; ++step) {
    for (unsigned k = threadIdx.x; k < 64 * 64 / 8; k += blockDim.x)
      reinterpret_cast<uint4*>(tile[step % 2])[k] = reinterpret_cast<const uint4*>(data.h)[step * 512 + k];
    __syncthreads();
    for (int k = 0; k < 4; ++k) {
      unsigned a[4], b[2];
      const unsigned at = static_cast<unsigned>(
          __cvta_generic_to_shared(&tile[step % 2][(lane % 16) * 64 + (lane / 16) * 8 + k * 16]));
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                   : "r"(at));
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                   : "=r"(b[0]), "=r"(b[1])
                   : "r"(at));
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
          "{%0,%1,%2,%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    __syncthreads();
  }
  data.c[thread()] = sum[0] + sum[1] + sum[2] + sum[3];
}

// 256 mma.sync a warp of each type, in four chains.
#define PRODUCTS(name, shape, types, kind, constraint)                                      \
  __global__ void name(Data data) {                                                         \
    unsigned a[4], b[2];                                                                    \
    for (int k = 0; k < 4; ++k) a[k] = data.index[(thread() + 64 * k) % n];                 \
    for (int k = 0; k < 2; ++k) b[k] = data.index[(thread() + 32 * k) % n];                 \
    kind sum[4][4] = {};                                                                    \
    for (int k = 0; k < 256; ++k) {                                                         \
      kind* const d = sum[k % 4];                                                           \
      asm volatile("mma.sync.aligned." shape ".row.col." types                              \
                   " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "                               \
                   "{%0,%1,%2,%3};"                                                         \
                   : constraint(d[0]), constraint(d[1]), constraint(d[2]), constraint(d[3]) \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));     \
    }                                                                                       \
    kind total = 0;                                                                         \
    for (int k = 0; k < 16; ++k) total += sum[k / 4][k % 4];                                \
    data.c[thread()] = static_cast<float>(total);                                           \
  }
PRODUCTS(mma_bf16, "m16n8k16", "f32.bf16.bf16.f32", float, "+f")
PRODUCTS(mma_f16, "m16n8k16", "f32.f16.f16.f32", float, "+f")
PRODUCTS(mma_tf32, "m16n8k8", "f32.tf32.tf32.f32", float, "+f")
PRODUCTS(mma_s8, "m16n8k32", "s32.s8.s8.s32", int, "+r")
PRODUCTS(mma_e4m3, "m16n8k32", "f32.e4m3.e4m3.f32", float, "+f")

// A kernel of many registers, in blocks of one warp that do little.
__global__ void tiny_blocks(Data data, int rounds) {
  float x[64];
#pragma unroll
  for (int k = 0; k < 64; ++k) x[k] = data.a[(thread() + k) % n];
  for (int r = 0; r < rounds; ++r)
#pragma unroll
    for (int k = 0; k < 64; ++k) x[k] = x[k] * x[(k + 7) % 64] + x[(k * 5 + 1) % 64];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 64; ++k) sum += x[k];
  data.c[thread()] = sum;
}

// A kernel most of which is not executed.
__global__ void early_exit(Data data, int rounds) {
  if (blockIdx.x < 1u << 30 && rounds == 0) return;
  float x[64];
#pragma unroll
  for (int k = 0; k < 64; ++k) x[k] = data.a[(thread() + k) % n];
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int k = 0; k < 64; ++k) x[k] = x[k] * x[(k + 7) % 64] + x[(k * 5 + 1) % 64];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 64; ++k) sum += x[k];
  data.c[thread()] = sum;
}

// Blocks that ask for much shared memory and use little of it.
__global__ void large_shared(Data data) {
  extern __shared__ float dynamic[];
  dynamic[threadIdx.x] = data.a[thread()];
  __syncthreads();
  data.c[thread()] = dynamic[255 - threadIdx.x];
}

__global__ void prints(Data) {
  if (threadIdx.x % 32 == 0) printf("%d %f\n", thread(), 0.5);
}

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class T>
void allocate(T*& pointer) {
  cudaMalloc(&pointer, n * sizeof(T));
}

}  // namespace

int main(int argc, char** argv) {
  Data data;
  allocate(data.a), allocate(data.b), allocate(data.c), allocate(data.index), allocate(data.count),
      allocate(data.wide);
  allocate(data.d), allocate(data.bytes), allocate(data.more_bytes), allocate(data.h), allocate(data.g);
  const auto measure = [&](const char* name, auto launch) {
    bool wanted = argc < 2;
    for (int k = 1; k < argc; ++k) wanted = wanted || !std::strcmp(argv[k], name);
    if (!wanted) return;
    fill<<<n / 256, 256>>>(data);
    cudaDeviceSynchronize();
    const double before = cpu_seconds();
    launch();
    if (cudaDeviceSynchronize() != cudaSuccess) std::fprintf(stderr, "%s failed\n", name);
    std::fprintf(stderr, "speed: %s %.6f\n", name, cpu_seconds() - before);
  };
#define MEASURE(kernel, blocks, threads) measure(#kernel, [&] { kernel<<<blocks, threads>>>(data); })
  MEASURE(axpy, n / 256, 256);
  MEASURE(registers, n / 256, 256);
  MEASURE(functions, n / 256, 256);
  MEASURE(gather, n / 256, 256);
  MEASURE(scatter, n / 256, 256);
  MEASURE(histogram, n / 256, 256);
  MEASURE(histogram_returning, n / 256, 256);
  MEASURE(histogram_shared, n / 256, 256);
  MEASURE(atomics_64, n / 256, 256);
  MEASURE(atomics_one_place, n / 256, 256);
  MEASURE(compare_and_swap, n / 256, 256);
  MEASURE(half_pairs, n / 512, 256);
  MEASURE(bfloat_pairs, n / 256, 256);
  MEASURE(doubles, n / 256, 256);
  MEASURE(bytes, n / 256, 256);
  MEASURE(bytes_shared, n / 256, 256);
  MEASURE(strided_bytes, n / 256, 256);
  MEASURE(divergent, n / 1024, 256);
  MEASURE(collatz, n / 1024, 256);
  MEASURE(local_array, n / 1024, 256);
  MEASURE(calls, n / 1024, 256);
  MEASURE(shuffles, n / 256, 256);
  MEASURE(votes, n / 256, 256);
  MEASURE(block_reduction, n / 256, 256);
  MEASURE(transpose, 256, 256);
  MEASURE(async_copies, n / 1024, 256);
  MEASURE(wmma_tiles, 128, 256);
  MEASURE(mma_pipeline, 256, 128);
  MEASURE(mma_bf16, 64, 128);
  MEASURE(mma_f16, 64, 128);
  MEASURE(mma_tf32, 64, 128);
  MEASURE(mma_s8, 64, 128);
  MEASURE(mma_e4m3, 64, 128);
  measure("tiny_blocks", [&] { tiny_blocks<<<n / 32, 32>>>(data, 1); });
  measure("early_exit", [&] { early_exit<<<n / 32, 32>>>(data, 0); });
  cudaFuncSetAttribute(large_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10);
  measure("large_shared", [&] { large_shared<<<n / 256, 256, 100 << 10>>>(data); });
  MEASURE(prints, 256, 256);
}
