#include "core/cuda/device.cuh"
#include "core/cuda/lanes.cuh"
#include "core/cuda/values.cuh"
#include "ops/rope/rope_kernels.h"

namespace nemocube::cuda {
namespace {

// Columns of the lanes are pairs of channels.
__global__ void table_kernel(const Lanes lanes, float* table, const std::int64_t* positions,
                             const double* inverse, double attention_factor) {
  for_own_packs<1>(lanes, [&](std::int64_t row, std::int64_t pair) {
    double z, c;
    sincos(static_cast<double>(positions[row]) * inverse[pair], &z, &c);
    float* to = table + row * 2 * lanes.cols + pair;
    to[0] = static_cast<float>(attention_factor * c);
    to[lanes.cols] = static_cast<float>(attention_factor * z);
  });
}

void make_table(const Tensor& table, const Tensor& positions, const Tensor& inverse,
                double attention_factor) {
  visit_dtype<float>("rope on cuda", table.dtype(), [&]<class A>(TypeTag<A>) {
    if (table.numel() == 0) return;
    const Lanes lanes = lanes_of(table.rows(), inverse.numel(), 1);
    launch("rope table", table_kernel, lanes.blocks(), lanes.threads(), lanes, data_of<A>(table),
           data_of<std::int64_t>(positions), data_of<double>(inverse), attention_factor);
  });
}

// A thread has the same channels of several heads, and reads their cos and sin once.
constexpr int heads_of_thread = 4;

// The heads of q, then those of k.
template <class T>
struct Heads {
  Rows<T> q_out, q, k_out, k;
  const float* table = nullptr;
  int q_heads = 0, heads = 0, head_dim = 0, pairs = 0;
  int pair_packs = 0, packs = 0;  // of a head: of pairs; with those of the channels that pass
  float sign = 1;                 // of sin

  struct Head {
    T* to;
    const T* from;
  };
  __device__ Head head_of(std::int64_t row, int head) const {
    const bool of_q = head < q_heads;
    const std::int64_t column = std::int64_t{of_q ? head : head - q_heads} * head_dim;
    const Rows<T> to = of_q ? q_out : k_out, from = of_q ? q : k;
    return {to.row(row) + column, from.row(row) + column};
  }
};

template <class T, int N>
__device__ void rotate_pairs(const Heads<T>& t, std::int64_t row, int first_head, int pair) {
  float c[N], z[N];
  const float* table = t.table + row * 2 * t.pairs + pair;
  read_values<true>(table, N, c);
  read_values<true>(table + t.pairs, N, z);
  Pack<T, N> a[heads_of_thread], b[heads_of_thread];
#pragma unroll
  for (int h = 0; h < heads_of_thread; ++h)
    if (first_head + h < t.heads) {
      const T* from = t.head_of(row, first_head + h).from + pair;
      a[h] = Pack<T, N>::load(from, N);
      b[h] = Pack<T, N>::load(from + t.pairs, N);
    }
#pragma unroll
  for (int h = 0; h < heads_of_thread; ++h)
    if (first_head + h < t.heads) {
      float x[N], y[N], turned_x[N], turned_y[N];
      a[h].read(x);
      b[h].read(y);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        // The compiler would join products and sums in another way for another N, which gives other bits.
        turned_x[i] = fmaf(x[i], c[i], -(y[i] * (t.sign * z[i])));
        turned_y[i] = fmaf(y[i], c[i], x[i] * (t.sign * z[i]));
      }
      T* to = t.head_of(row, first_head + h).to + pair;
      Pack<T, N>::of(turned_x).store(to, N);
      Pack<T, N>::of(turned_y).store(to + t.pairs, N);
    }
}

template <class T, int N>
__device__ void pass_channels(const Heads<T>& t, std::int64_t row, int first_head, int channel) {
#pragma unroll
  for (int h = 0; h < heads_of_thread; ++h)
    if (first_head + h < t.heads) {
      const typename Heads<T>::Head head = t.head_of(row, first_head + h);
      if (head.to != head.from) Pack<T, N>::load(head.from + channel, N).store(head.to + channel, N);
    }
}

// Columns of the lanes are packs of N pairs or channels, of all groups of heads.
template <class T, int N>
__global__ void rotate_kernel(const Lanes lanes, const Heads<T> t) {
  for_own_packs<1>(lanes, [&](std::int64_t row, std::int64_t column) {
    const int group = static_cast<int>(column) / t.packs, pack = static_cast<int>(column) % t.packs;
    const int first_head = group * heads_of_thread;
    if (pack < t.pair_packs)
      rotate_pairs<T, N>(t, row, first_head, pack * N);
    else
      pass_channels<T, N>(t, row, first_head, 2 * t.pairs + (pack - t.pair_packs) * N);
  });
}

template <class T, int N>
void rotate_packs(const RopeOperands& o, Heads<T> t) {
  const bool all_in_place = rows_of<T>(o.q).start == rows_of<T>(o.q_out).start &&
                            rows_of<T>(o.k).start == rows_of<T>(o.k_out).start;
  t.pair_packs = t.pairs / N;
  t.packs = t.pair_packs + (all_in_place ? 0 : (t.head_dim - 2 * t.pairs) / N);
  const std::int64_t groups = (t.heads + heads_of_thread - 1) / heads_of_thread;
  if (t.packs == 0) return;
  const Lanes lanes = lanes_of(o.table.rows(), groups * t.packs, 1);
  launch("rope rotate", rotate_kernel<T, N>, lanes.blocks(), lanes.threads(), lanes, t);
}

void rotate(const RopeOperands& o) {
  const std::int64_t q_width = o.q ? o.q.cols() : 0, k_width = o.k ? o.k.cols() : 0;
  require(q_width + k_width < std::int64_t{1} << 31,
          "rope on cuda: want rows of q and k together below 2^31 channels, got ", q_width + k_width);
  visit_storage("rope", (o.q ? o.q : o.k).dtype(), [&]<class T>(TypeTag<T>) {
    if (o.table.rows() == 0 || q_width + k_width == 0) return;
    const Heads<T> t{.q_out = rows_of<T>(o.q_out),
                     .q = rows_of<T>(o.q),
                     .k_out = rows_of<T>(o.k_out),
                     .k = rows_of<T>(o.k),
                     .table = data_of<float>(o.table),
                     .q_heads = static_cast<int>(q_width / o.head_dim),
                     .heads = static_cast<int>((q_width + k_width) / o.head_dim),
                     .head_dim = static_cast<int>(o.head_dim),
                     .pairs = static_cast<int>(o.table.cols() / 2),
                     .sign = o.back ? -1.0F : 1.0F};
    const bool whole_packs = t.head_dim % whole_pack<T> == 0 && t.pairs % whole_pack<T> == 0 &&
                             rows_aligned(o.q_out, o.q, o.k_out, o.k);
    whole_packs ? rotate_packs<T, whole_pack<T>>(o, t) : rotate_packs<T, 1>(o, t);
  });
}

const Provide provided[] = {{rope_table, make_table}, {rope_rotate, rotate}};

}  // namespace
}  // namespace nemocube::cuda
