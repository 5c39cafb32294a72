// Matrix products: tiles in shared memory, asynchronous copies, matrix instructions, 16-bit arithmetic.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <cmath>
#include <cuda/barrier>
#include <cuda/pipeline>

#include "program.h"

namespace cg = cooperative_groups;

// Barriers in shared memory are initialised by the kernel and not by their constructors.
#pragma nv_diag_suppress static_var_with_dynamic_init

/// Small integers, so that sums of products are exact in every type used here.
template <class T>
std::vector<T> small_matrix(int size, int seed) {
  std::vector<T> values(size);
  for (int i = 0; i < size; ++i) values[i] = T(static_cast<float>((i * 29 + i / 7 + seed) % 9 - 4));
  return values;
}

/// C = A B by its definition; A is m x k and B is k x n, both in row order. B in column order with transposed.
template <class C, class T>
std::vector<C> product(const std::vector<T>& a, const std::vector<T>& b, int m, int n, int k,
                       bool transposed = false) {
  std::vector<C> c(m * n);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l)
        sum += static_cast<double>(a[i * k + l]) * static_cast<double>(b[transposed ? j * k + l : l * n + j]);
      c[i * n + j] = C(static_cast<float>(sum));
    }
  return c;
}

// Two buffers: one tile is loaded while the other is multiplied.

__global__ void tiled(const float* a, const float* b, float* c, int m, int n, int k) {
  const int tile = 16;
  __shared__ float sa[2][tile][tile], sb[2][tile][tile];
  const int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * tile + ty, column = blockIdx.x * tile + tx;
  const auto fetch = [&](int t, float& va, float& vb) {
    va = row < m && t * tile + tx < k ? a[row * k + t * tile + tx] : 0;
    vb = column < n && t * tile + ty < k ? b[(t * tile + ty) * n + column] : 0;
  };
  const int tiles = (k + tile - 1) / tile;
  float next_a, next_b, sum = 0;
  fetch(0, sa[0][ty][tx], sb[0][ty][tx]);
  __syncthreads();
  for (int t = 0; t < tiles; ++t) {
    if (t + 1 < tiles) fetch(t + 1, next_a, next_b);
#pragma unroll
    for (int l = 0; l < tile; ++l) sum = fmaf(sa[t % 2][ty][l], sb[t % 2][l][tx], sum);
    if (t + 1 < tiles) {
      sa[(t + 1) % 2][ty][tx] = next_a;
      sb[(t + 1) % 2][ty][tx] = next_b;
    }
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
bool tiles_with_two_buffers() {
  const int m = 45, n = 70, k = 83;
  const std::vector<float> a = small_matrix<float>(m * k, 1), b = small_matrix<float>(k * n, 2);
  DeviceVector<float> da(a), db(b), c(m * n);
  tiled<<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>(da.data(), db.data(), c.data(), m, n, k);
  return c.host() == product<float>(a, b, m, n, k);
}

// Asynchronous copies of each thread, in three stages.

__global__ void pipelined(const float4* a, const float4* b, float* c, int n, int k) {
  const int tile = 32, stages = 3;
  __shared__ float4 sa[stages][tile][tile / 4], sb[stages][tile][tile / 4];
  const int t = threadIdx.x, r = t / 8, q = t % 8,
            tiles = k / tile;  // a thread copies four values and computes four
  const auto copy = [&](int step) {
    if (step < tiles) {
      __pipeline_memcpy_async(&sa[step % stages][r][q],
                              &a[((blockIdx.y * tile + r) * k + step * tile) / 4 + q], 16);
      __pipeline_memcpy_async(&sb[step % stages][r][q],
                              &b[((step * tile + r) * n + blockIdx.x * tile) / 4 + q], 16);
    }
    __pipeline_commit();
  };
  for (int step = 0; step + 1 < stages; ++step) copy(step);
  float4 sum = make_float4(0, 0, 0, 0);
  for (int step = 0; step < tiles; ++step) {
    __pipeline_wait_prior(stages - 2);
    __syncthreads();
    copy(step + stages - 1);
    const float* const left = reinterpret_cast<const float*>(sa[step % stages][r]);
    for (int l = 0; l < tile; ++l) {
      const float4 v = sb[step % stages][l][q];
      sum.x = fmaf(left[l], v.x, sum.x);
      sum.y = fmaf(left[l], v.y, sum.y);
      sum.z = fmaf(left[l], v.z, sum.z);
      sum.w = fmaf(left[l], v.w, sum.w);
    }
  }
  reinterpret_cast<float4*>(c)[((blockIdx.y * tile + r) * n + blockIdx.x * tile) / 4 + q] = sum;
}
bool copies_in_stages() {
  const int m = 64, n = 96, k = 160;
  const std::vector<float> a = small_matrix<float>(m * k, 3), b = small_matrix<float>(k * n, 4);
  DeviceVector<float> da(a), db(b), c(m * n);
  pipelined<<<dim3(n / 32, m / 32), 256>>>(reinterpret_cast<float4*>(da.data()),
                                           reinterpret_cast<float4*>(db.data()), c.data(), n, k);
  return c.host() == product<float>(a, b, m, n, k);
}

// Rows through cuda::pipeline and cuda::barrier: the block copies together.

__global__ void sums_by_pipeline(const float* in, float* sums, int rows, int width) {
  constexpr int stages = 4;
  extern __shared__ __align__(16) float buffer[];  // stages x width
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
  const cg::thread_block block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  const auto size = cuda::aligned_size_t<16>(sizeof(float) * width);
  float sum = 0;
  for (int row = 0, next = 0; row < rows; ++row) {
    for (; next < rows && next < row + stages; ++next) {
      pipeline.producer_acquire();
      cuda::memcpy_async(block, buffer + next % stages * width, in + (blockIdx.x * rows + next) * width, size,
                         pipeline);
      pipeline.producer_commit();
    }
    pipeline.consumer_wait();
    // Neighbours' values: the copies of other threads must have arrived too.
    for (int i = threadIdx.x; i < width; i += blockDim.x)
      sum += (row + 1) * buffer[row % stages * width + width - 1 - i];
    pipeline.consumer_release();
  }
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
__global__ void sums_by_barrier(const float* in, float* sums, int rows, int width) {
  extern __shared__ __align__(16) float buffer[];  // width
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ Barrier barrier;
  const cg::thread_block block = cg::this_thread_block();
  if (block.thread_rank() == 0) init(&barrier, block.size());
  block.sync();
  float sum = 0;
  for (int row = 0; row < rows; ++row) {
    cuda::memcpy_async(block, buffer, in + (blockIdx.x * rows + row) * width, sizeof(float) * width, barrier);
    barrier.arrive_and_wait();
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += (row + 1) * buffer[width - 1 - i];
    barrier.wait(barrier.arrive());
  }
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
bool pipeline_and_barrier() {
  const int rows = 11, width = 200, threads = 64, blocks = 3;
  const std::vector<float> in = small_matrix<float>(blocks * rows * width, 5);
  DeviceVector<float> device(in), first(blocks * threads), second(blocks * threads);
  sums_by_pipeline<<<blocks, threads, 4 * width * sizeof(float)>>>(device.data(), first.data(), rows, width);
  sums_by_barrier<<<blocks, threads, width * sizeof(float)>>>(device.data(), second.data(), rows, width);
  std::vector<float> wanted(blocks * threads);
  for (int b = 0; b < blocks; ++b)
    for (int row = 0; row < rows; ++row)
      for (int i = 0; i < width; ++i)
        wanted[b * threads + i % threads] += (row + 1) * in[(b * rows + row) * width + width - 1 - i];
  return first.host() == wanted && second.host() == wanted;
}

// wmma: one warp computes a tile of C.

template <class T, class C, int m, int n, int k, class Fragment = T>
__global__ void by_wmma(const T* a, const T* b, C* c, int columns, int depth) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, m, n, k, Fragment, row_major> left;
  fragment<matrix_b, m, n, k, Fragment, col_major> right;
  fragment<accumulator, m, n, k, C> sum;
  fill_fragment(sum, C(0.0f));
  for (int l = 0; l < depth; l += k) {
    load_matrix_sync(left, a + blockIdx.y * m * depth + l, depth);
    load_matrix_sync(right, b + blockIdx.x * n * depth + l, depth);
    if constexpr (!std::is_same_v<T, Fragment>) {
      for (int i = 0; i < left.num_elements; ++i) left.x[i] = __float_to_tf32(left.x[i]);
      for (int i = 0; i < right.num_elements; ++i) right.x[i] = __float_to_tf32(right.x[i]);
    }
    mma_sync(sum, left, right, sum);
  }
  for (int i = 0; i < sum.num_elements; ++i) sum.x[i] = sum.x[i] + sum.x[i];
  store_matrix_sync(c + blockIdx.y * m * columns + blockIdx.x * n, sum, columns, mem_row_major);
}
template <class T, class C, int m, int n, int k, class Fragment = T>
bool wmma_product() {
  const int rows = 2 * m, columns = 3 * n, depth = 5 * k;
  const std::vector<T> a = small_matrix<T>(rows * depth, 6), b = small_matrix<T>(columns * depth, 7);
  DeviceVector<T> da(a), db(b);
  DeviceVector<C> c(rows * columns);
  by_wmma<T, C, m, n, k, Fragment><<<dim3(3, 2), 32>>>(da.data(), db.data(), c.data(), columns, depth);
  const std::vector<C> found = c.host(), wanted = product<C>(a, b, rows, columns, depth, true);
  for (std::size_t i = 0; i < found.size(); ++i)
    if (static_cast<float>(found[i]) != 2 * static_cast<float>(wanted[i])) return false;
  return true;
}
bool wmma_of_all_types() {
  return wmma_product<__half, float, 16, 16, 16>() && wmma_product<__half, __half, 32, 8, 16>() &&
         wmma_product<__nv_bfloat16, float, 8, 32, 16>() &&
         wmma_product<__nv_bfloat16, float, 16, 16, 16>() &&
         wmma_product<float, float, 16, 16, 8, nvcuda::wmma::precision::tf32>() &&
         wmma_product<double, double, 8, 8, 4>();
}

// ldmatrix and mma.sync: four warps, each 32 x 32 of a tile of 64 x 64. Padded rows avoid bank conflicts.

template <class T>
__device__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class T>
__global__ void by_mma(const T* a, const T* b, float* c, int n, int k) {
  const int tile = 64, depth = 32, stride = depth + 8, stride_b = tile + 8;
  __shared__ __align__(16) T sa[tile][stride], sb[depth][stride_b];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = warp / 2 * 32, column0 = warp % 2 * 32;
  float sum[2][4][4] = {};
  for (int l = 0; l < k; l += depth) {
    for (int i = threadIdx.x; i < tile * depth / 8; i += blockDim.x) {
      const int r = i / (depth / 8), q = i % (depth / 8) * 8, rb = i / (tile / 8), qb = i % (tile / 8) * 8;
      __pipeline_memcpy_async(&sa[r][q], &a[(blockIdx.y * tile + r) * k + l + q], 16);
      __pipeline_memcpy_async(&sb[rb][qb], &b[(l + rb) * n + blockIdx.x * tile + qb], 16);
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int step = 0; step < depth; step += 16) {
      unsigned left[2][4], right[4][2];
      for (int i = 0; i < 2; ++i) {
        const unsigned address =
            __cvta_generic_to_shared(&sa[row0 + 16 * i + lane % 16][step + lane / 16 * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(left[i][0]), "=r"(left[i][1]), "=r"(left[i][2]), "=r"(left[i][3])
                     : "r"(address));
      }
      for (int j = 0; j < 4; ++j) {
        const unsigned address = __cvta_generic_to_shared(&sb[step + lane % 16][column0 + 8 * j]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(right[j][0]), "=r"(right[j][1])
                     : "r"(address));
      }
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) multiply<T>(sum[i][j], left[i], right[j][0], right[j][1]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      for (int half = 0; half < 2; ++half) {
        const int row = blockIdx.y * tile + row0 + 16 * i + lane / 4 + 8 * half;
        const int column = blockIdx.x * tile + column0 + 8 * j + lane % 4 * 2;
        *reinterpret_cast<float2*>(&c[row * n + column]) =
            make_float2(sum[i][j][2 * half], sum[i][j][2 * half + 1]);
      }
}
template <class T>
bool mma_product() {
  const int m = 128, n = 64, k = 96;
  const std::vector<T> a = small_matrix<T>(m * k, 8), b = small_matrix<T>(k * n, 9);
  DeviceVector<T> da(a), db(b);
  DeviceVector<float> c(m * n);
  by_mma<T><<<dim3(n / 64, m / 64), 128>>>(da.data(), db.data(), c.data(), n, k);
  return c.host() == product<float>(a, b, m, n, k);
}
bool mma_with_ldmatrix() { return mma_product<__half>() && mma_product<__nv_bfloat16>(); }

// 16-bit arithmetic, by pairs and alone. The host computes in double and rounds after each step.

__global__ void half_arithmetic(const __half2* a, const __half2* b, __half2* out, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const __half2 x = a[i], y = b[i];
    out[5 * i] = __hfma2(x, y, __float2half2_rn(0.5f));
    out[5 * i + 1] = __hmul2(__hadd2(x, y), __hsub2(x, y));
    out[5 * i + 2] = __hmax2(__hneg2(x), __habs2(y));
    out[5 * i + 3] = __hlt(__low2half(x), __high2half(y)) ? __lowhigh2highlow(x)
                                                          : __halves2half2(__int2half_rn(i), __high2half(y));
    out[5 * i + 4] = __hadd2_sat(x, y);
  }
}
__global__ void bfloat_arithmetic(const __nv_bfloat162* a, const __nv_bfloat162* b, __nv_bfloat162* out,
                                  float2* wide, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const __nv_bfloat162 x = a[i], y = b[i];
    out[4 * i] = __hfma2(x, y, x);
    out[4 * i + 1] = __hmin2(x * y, x - y);
    out[4 * i + 2] = __hge2(x, y);
    out[4 * i + 3] = __floats2bfloat162_rn(__low2float(x) / 3, __high2float(y) / 3);
    wide[i] = __bfloat1622float2(x);
  }
}
__global__ void half_reduction(const __half* values, int n, float* sum, __half2* dot) {
  __half2 own = __float2half2_rn(0.0f);
  float wide = 0;
  for (int i = threadIdx.x; i < n / 2; i += 32) {
    const __half2 v = reinterpret_cast<const __half2*>(values)[i];
    own = __hfma2(v, v, own);
    wide += __half2float(__low2half(v)) + __half2float(__high2half(v));
  }
  for (int step = 16; step > 0; step /= 2) {
    own = __hadd2(own, __shfl_xor_sync(~0u, own, step));
    wide += __shfl_xor_sync(~0u, wide, step);
  }
  if (threadIdx.x == 0) *sum = wide;
  if (threadIdx.x < 4) atomicAdd(dot, own);
}
bool sixteen_bit_arithmetic() {
  const int n = 300;
  const std::vector<unsigned> words = random_words(4 * n);
  std::vector<__half2> a(n), b(n);
  std::vector<__nv_bfloat162> c(n), d(n);
  const auto value = [&](int i) {
    return static_cast<float>(static_cast<int>(words[i] % 20001) - 10000) / 4096;
  };
  for (int i = 0; i < n; ++i) {
    a[i] = __floats2half2_rn(value(4 * i), value(4 * i + 1));
    b[i] = __floats2half2_rn(value(4 * i + 2), value(4 * i + 3));
    c[i] = __floats2bfloat162_rn(value(4 * i), value(4 * i + 1));
    d[i] = __floats2bfloat162_rn(value(4 * i + 2), value(4 * i + 3));
  }
  DeviceVector<__half2> da(a), db(b), out(5 * n);
  DeviceVector<__nv_bfloat162> dc(c), dd(d), out_b(4 * n);
  DeviceVector<float2> wide(n);
  half_arithmetic<<<1, 96>>>(da.data(), db.data(), out.data(), n);
  bfloat_arithmetic<<<1, 96>>>(dc.data(), dd.data(), out_b.data(), wide.data(), n);
  const std::vector<__half2> h = out.host();
  const std::vector<__nv_bfloat162> g = out_b.host();
  const std::vector<float2> w = wide.host();
  const auto half = [](double v) { return __half2float(__double2half(v)); };
  const auto bfloat = [](double v) { return __bfloat162float(__double2bfloat16(v)); };
  for (int i = 0; i < n; ++i) {
    const float2 x = __half22float2(a[i]), y = __half22float2(b[i]), u = __bfloat1622float2(c[i]),
                 v = __bfloat1622float2(d[i]);
    const auto pair = [&](const std::vector<__half2>& from, int k, double low, double high) {
      const float2 p = __half22float2(from[5 * i + k]);
      return p.x == half(low) && p.y == half(high);
    };
    const auto pair_b = [&](int k, double low, double high) {
      const float2 p = __bfloat1622float2(g[4 * i + k]);
      return p.x == bfloat(low) && p.y == bfloat(high);
    };
    const double x0 = x.x, x1 = x.y, y0 = y.x, y1 = y.y, u0 = u.x, u1 = u.y, v0 = v.x, v1 = v.y;
    const bool right =
        pair(h, 0, x0 * y0 + 0.5, x1 * y1 + 0.5) &&
        pair(h, 1, half(x0 + y0) * half(x0 - y0), half(x1 + y1) * half(x1 - y1)) &&
        pair(h, 2, std::max(-x0, std::abs(y0)), std::max(-x1, std::abs(y1))) &&
        (x0 < y1 ? pair(h, 3, x1, x0) : pair(h, 3, i, y1)) &&
        pair(h, 4, std::min(std::max(x0 + y0, 0.0), 1.0), std::min(std::max(x1 + y1, 0.0), 1.0)) &&
        pair_b(0, u0 * v0 + u0, u1 * v1 + u1) &&
        pair_b(1, std::min<double>(bfloat(u0 * v0), bfloat(u0 - v0)),
               std::min<double>(bfloat(u1 * v1), bfloat(u1 - v1))) &&
        pair_b(2, u0 >= v0, u1 >= v1) && pair_b(3, u.x / 3, v.y / 3) && w[i].x == u.x && w[i].y == u.y;
    if (!right) return false;
  }
  const std::vector<__half> values = small_matrix<__half>(512, 1);
  float wanted = 0, squares[2] = {};
  for (int i = 0; i < 512; ++i) {
    const float v = __half2float(values[i]);
    wanted += v;
    squares[i % 2] += 4 * v * v;
  }
  DeviceVector<__half> dv(values);
  DeviceVector<float> sum(1);
  DeviceVector<__half2> dot(std::vector<__half2>{__float2half2_rn(0.0f)});
  half_reduction<<<1, 32>>>(dv.data(), 512, sum.data(), dot.data());
  // Sums of squares beyond 2048 are rounded: they are a multiple of four, which is exact to 8192.
  const float2 found = __half22float2(dot.host()[0]);
  return sum.host()[0] == wanted && found.x == squares[0] && found.y == squares[1];
}

// More shared memory than a kernel gets unasked.

__global__ void with_large_tiles(const float* a, const float* b, float* c, int n, int k) {
  extern __shared__ float4 memory[];
  float* const sa = reinterpret_cast<float*>(memory);  // 64 x k
  float* const sb = sa + 64 * k;                       // k x 64
  for (int i = threadIdx.x; i < 64 * k; i += blockDim.x) {
    sa[i] = a[blockIdx.y * 64 * k + i];
    sb[i] = b[i / 64 * n + blockIdx.x * 64 + i % 64];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) {
    float sum = 0;
    for (int l = 0; l < k; ++l) sum = fmaf(sa[i / 64 * k + l], sb[l * 64 + i % 64], sum);
    c[(blockIdx.y * 64 + i / 64) * n + blockIdx.x * 64 + i % 64] = sum;
  }
}
bool large_shared_memory() {
  const int m = 64, n = 128, k = 200, bytes = 2 * 64 * k * static_cast<int>(sizeof(float));  // 100 KiB
  const std::vector<float> a = small_matrix<float>(m * k, 10), b = small_matrix<float>(k * n, 11);
  DeviceVector<float> da(a), db(b), c(m * n);
  CHECK_CUDA(cudaFuncSetAttribute(with_large_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  int blocks = 0;
  CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, with_large_tiles, 256, bytes));
  with_large_tiles<<<dim3(n / 64, m / 64), 256, bytes>>>(da.data(), db.data(), c.data(), n, k);
  CHECK_CUDA(cudaGetLastError());
  return blocks == 2 && c.host() == product<float>(a, b, m, n, k);
}

int main(int argc, char** argv) {
  return run_programs({{"tiles_with_two_buffers", tiles_with_two_buffers},
                       {"copies_in_stages", copies_in_stages},
                       {"pipeline_and_barrier", pipeline_and_barrier},
                       {"wmma_of_all_types", wmma_of_all_types},
                       {"mma_with_ldmatrix", mma_with_ldmatrix},
                       {"sixteen_bit_arithmetic", sixteen_bit_arithmetic},
                       {"large_shared_memory", large_shared_memory}},
                      argc, argv);
}
