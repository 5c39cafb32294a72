#include "core/cuda/block_size.cuh"
#include "core/cuda/block_sum.cuh"
#include "core/cuda/device.cuh"
#include "core/cuda/values.cuh"
#include "core/cuda/warp.cuh"
#include "ops/gated_rmsnorm/gated_rmsnorm_kernels.h"
#include "ops/math.cuh"
#include "ops/segments.h"

// A team of threads has one group of one row: a warp, of which a block has several, or a block. Thread t of a
// team has packs t, t + team, .. of N neighbouring channels. The first `held` packs of a thread stay in
// registers, so that every operand is read once; only groups of more than 512 * held packs are read a second
// time. Rows that are not aligned are read element by element, in the same order, so that a window of a wider
// tensor gives the bits of its copy.
namespace nemocube::cuda {
namespace {

template <int team>
constexpr int block_threads = team < 128 ? 128 : team;
template <int team>
constexpr int teams_of_block = block_threads<team> / team;

/// The sum over a team, for all of its threads, in a fixed order.
template <int team>
__device__ float team_sum(float x) {
  if constexpr (team == warp_threads) {
    return warp_sum(x);
  } else {
    return block_sum<team>(x);
  }
}

template <class T>
struct Operands {
  Rows<T> y, z;
  Parameter<T> weight;
  std::int64_t rows, groups;
  int size;         // channels of a group
  float mean_size;  // of a group on all ranks
};

template <class T>
Operands<T> operands(const Tensor& y, const Tensor& z, const Tensor& weight, std::int64_t groups,
                     std::int64_t ranks) {
  const std::int64_t size = y.cols() / groups;
  require(size < (std::int64_t{1} << 30),
          "gated_rmsnorm on cuda: want groups of fewer than 2^30 channels, got ", size);
  return {rows_of<T>(y), rows_of<T>(z),          parameter_of<T>(weight),         y.rows(),
          groups,        static_cast<int>(size), static_cast<float>(size * ranks)};
}

/// Norm first, all groups may have one weight.
template <class T>
struct NormFirst : Operands<T> {
  bool shared;
};
template <GateOrder order, class T>
using OrderedOperands = std::conditional_t<order == GateOrder::gate_first, Operands<T>, NormFirst<T>>;
template <GateOrder order, class T>
OrderedOperands<order, T> ordered(const Operands<T>& t, const Tensor& weight) {
  if constexpr (order == GateOrder::gate_first)
    return t;
  else
    return {t, weight.defined() && weight.numel() == t.size};
}

/// Calls fn(order) with a constant.
template <class Fn>
void visit_order(GateOrder order, Fn&& fn) {
  if (order == GateOrder::gate_first)
    fn(std::integral_constant<GateOrder, GateOrder::gate_first>());
  else
    fn(std::integral_constant<GateOrder, GateOrder::norm_first>());
}

/// Calls fn(aligned, team) with constants.
template <class T, class Fn>
void visit_layout(const Operands<T>& t, bool rows_are_aligned, int held, Fn&& fn) {
  const std::int64_t held_channels = std::int64_t{whole_pack<T>} * held;
  const bool aligned = rows_are_aligned && t.size % whole_pack<T> == 0;  // every group starts at a whole pack
  visit_block_size((t.size + held_channels - 1) / held_channels,
                   [&](auto team) { aligned ? fn(std::true_type(), team) : fn(std::false_type(), team); });
}

/// Channels from c on that a pack may touch. `aligned`: rows are aligned and groups have whole packs only.
template <bool aligned, class T>
__device__ int channels_from(const Operands<T>& t, int c) {
  return aligned ? whole_pack<T> : t.size - c;
}

/// The first channel of a group's weight.
template <class T>
__device__ std::int64_t weight_start(const Operands<T>&, std::int64_t start) {
  return start;
}
template <class T>
__device__ std::int64_t weight_start(const NormFirst<T>& t, std::int64_t start) {
  return t.shared ? 0 : start;
}

/// g = y silu(z)
template <bool aligned, class T, int N>
__device__ void read_gated(const Operands<T>& t, std::int64_t row, std::int64_t channel, int count,
                           float (&g)[N]) {
  float z[N];
  read_values<aligned>(t.y.row(row) + channel, count, g);
  read_values<aligned>(t.z.row(row) + channel, count, z);
#pragma unroll
  for (int i = 0; i < N; ++i) g[i] *= z[i] * sigmoid(z[i]);
}

template <class T>
constexpr int held_forward = 16 / whole_pack<T>;

// `squares`: sums over groups on all ranks, or null: the kernel sums.
template <class T, bool aligned, int team>
__global__ void __launch_bounds__(block_threads<team>)
    forward_kernel(const Operands<T> t, Rows<T> out, float* inv_rms, const float* squares, float eps) {
  constexpr int N = whole_pack<T>, packs = held_forward<T>;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * teams_of_block<team> + threadIdx.x / team;
  if (item >= t.rows * t.groups) return;
  const std::int64_t row = item / t.groups, start = item % t.groups * t.size;
  const int first = static_cast<int>(threadIdx.x % team) * N, step = team * N;
  float own = 0;
  const auto gate = [&](int c, float(&g)[N]) {
    read_gated<aligned>(t, row, start + c, channels_from<aligned>(t, c), g);
  };
  const auto add_squares = [&](const float(&g)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) own += g[i] * g[i];
  };
  const auto finish = [&](int c, const float(&g)[N], float scale) {
    float w[N];
    t.weight.template read<aligned>(start + c, channels_from<aligned>(t, c), w);
#pragma unroll
    for (int i = 0; i < N; ++i) w[i] *= g[i] * scale;
    Pack<T, N>::of(w).template store<aligned>(out.row(row) + start + c, channels_from<aligned>(t, c));
  };

  float held[packs][N];
#pragma unroll
  for (int k = 0; k < packs; ++k)
    if (const int c = first + k * step; c < t.size) {
      gate(c, held[k]);
      add_squares(held[k]);
    }
  float sum;
  if (squares) {
    sum = squares[item];
  } else {
    for (int c = first + packs * step; c < t.size; c += step) {
      float g[N];
      gate(c, g);
      add_squares(g);
    }
    sum = team_sum<team>(own);
  }
  const float scale = 1 / sqrtf(sum / t.mean_size + eps);
  if (threadIdx.x % team == 0) inv_rms[item] = scale;

#pragma unroll
  for (int k = 0; k < packs; ++k)
    if (const int c = first + k * step; c < t.size) finish(c, held[k], scale);
  for (int c = first + packs * step; c < t.size; c += step) {
    float g[N];
    gate(c, g);
    finish(c, g, scale);
  }
}

/// The same with the norm first.
template <class T, bool aligned, int team>
__global__ void __launch_bounds__(block_threads<team>)
    normed_forward_kernel(const NormFirst<T> t, Rows<T> out, float* inv_rms, const float* squares,
                          float eps) {
  constexpr int N = whole_pack<T>, packs = held_forward<T>;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * teams_of_block<team> + threadIdx.x / team;
  if (item >= t.rows * t.groups) return;
  const std::int64_t row = item / t.groups, start = item % t.groups * t.size;
  const int first = static_cast<int>(threadIdx.x % team) * N, step = team * N;
  float own = 0;
  const auto read = [&](int c, float(&y)[N]) {
    read_values<aligned>(t.y.row(row) + start + c, channels_from<aligned>(t, c), y);
  };
  const auto add_squares = [&](const float(&y)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) own += y[i] * y[i];
  };
  const auto finish = [&](int c, const float(&y)[N], float scale) {
    float w[N], z[N];
    t.weight.template read<aligned>(weight_start(t, start) + c, channels_from<aligned>(t, c), w);
    read_values<aligned>(t.z.row(row) + start + c, channels_from<aligned>(t, c), z);
#pragma unroll
    for (int i = 0; i < N; ++i) w[i] *= y[i] * scale * (z[i] * sigmoid(z[i]));
    Pack<T, N>::of(w).template store<aligned>(out.row(row) + start + c, channels_from<aligned>(t, c));
  };

  float held[packs][N];
#pragma unroll
  for (int k = 0; k < packs; ++k)
    if (const int c = first + k * step; c < t.size) {
      read(c, held[k]);
      add_squares(held[k]);
    }
  float sum;
  if (squares) {
    sum = squares[item];
  } else {
    for (int c = first + packs * step; c < t.size; c += step) {
      float y[N];
      read(c, y);
      add_squares(y);
    }
    sum = team_sum<team>(own);
  }
  const float scale = 1 / sqrtf(sum / t.mean_size + eps);
  if (threadIdx.x % team == 0) inv_rms[item] = scale;

#pragma unroll
  for (int k = 0; k < packs; ++k)
    if (const int c = first + k * step; c < t.size) finish(c, held[k], scale);
  for (int c = first + packs * step; c < t.size; c += step) {
    float y[N];
    read(c, y);
    finish(c, y, scale);
  }
}

void forward(const Tensor& out, const Tensor& inv_rms, const Tensor& y, const Tensor& z, const Tensor& weight,
             double eps, const GroupSums& squares, GateOrder order) {
  visit_storage("gated_rmsnorm", y.dtype(), [&]<class T>(TypeTag<T>) {
    if (y.rows() == 0) return;
    const Operands<T> t = operands<T>(y, z, weight, inv_rms.cols(), squares.ranks);
    const float* given = squares.values.defined() ? data_of<float>(squares.values) : nullptr;
    visit_layout(t, rows_aligned(out, y, z, weight), held_forward<T>, [&](auto aligned, auto team) {
      const auto start = [&](auto kernel, const auto& operands) {
        launch("gated_rmsnorm forward", kernel, blocks_for(t.rows * t.groups, teams_of_block<team>),
               block_threads<team>, operands, rows_of<T>(out), data_of<float>(inv_rms), given,
               static_cast<float>(eps));
      };
      if (order == GateOrder::gate_first)
        start(forward_kernel<T, aligned, team>, t);
      else
        start(normed_forward_kernel<T, aligned, team>, ordered<GateOrder::norm_first>(t, weight));
    });
  });
}

// Sums of a group's share for the other ranks: with dout and inv_rms the dots of backward, without the
// squares of forward.
template <GateOrder order, class T, bool aligned, int team>
__global__ void __launch_bounds__(block_threads<team>)
    sums_kernel(const OrderedOperands<order, T> t, float* sums, Rows<T> dout, const float* inv_rms) {
  constexpr int N = whole_pack<T>;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * teams_of_block<team> + threadIdx.x / team;
  if (item >= t.rows * t.groups) return;
  const std::int64_t row = item / t.groups, start = item % t.groups * t.size;
  float own = 0;
  for (int c = static_cast<int>(threadIdx.x % team) * N; c < t.size; c += team * N) {
    float g[N];
    if constexpr (order == GateOrder::gate_first)
      read_gated<aligned>(t, row, start + c, channels_from<aligned>(t, c), g);
    else
      read_values<aligned>(t.y.row(row) + start + c, channels_from<aligned>(t, c), g);
    if (dout) {
      float up[N], w[N];
      read_values<aligned>(dout.row(row) + start + c, channels_from<aligned>(t, c), up);
      t.weight.template read<aligned>(weight_start(t, start) + c, channels_from<aligned>(t, c), w);
      if constexpr (order == GateOrder::norm_first) {
        float z[N];
        read_values<aligned>(t.z.row(row) + start + c, channels_from<aligned>(t, c), z);
#pragma unroll
        for (int i = 0; i < N; ++i) w[i] *= z[i] * sigmoid(z[i]);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) own += w[i] * up[i] * g[i];
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) own += g[i] * g[i];
    }
  }
  const float sum = team_sum<team>(own);
  if (threadIdx.x % team == 0) sums[item] = dout ? sum * inv_rms[item] : sum;
}

void sum_groups(const char* name, const Tensor& sums, const Tensor& dout, const Tensor& y, const Tensor& z,
                const Tensor& weight, const Tensor& inv_rms, GateOrder order) {
  visit_storage("gated_rmsnorm", y.dtype(), [&]<class T>(TypeTag<T>) {
    if (y.rows() == 0) return;
    const Operands<T> t = operands<T>(y, z, weight, sums.cols(), 1);
    const float* scales = inv_rms.defined() ? data_of<float>(inv_rms) : nullptr;
    visit_order(order, [&](auto chosen) {
      constexpr GateOrder fixed = decltype(chosen)::value;
      visit_layout(t, rows_aligned(dout, y, z, weight), held_forward<T>, [&](auto aligned, auto team) {
        launch(name, sums_kernel<fixed, T, aligned, team>,
               blocks_for(t.rows * t.groups, teams_of_block<team>), block_threads<team>,
               ordered<fixed>(t, weight), data_of<float>(sums), rows_of<T>(dout), scales);
      });
    });
  });
}

void squares(const Tensor& sums, const Tensor& y, const Tensor& z, GateOrder order) {
  sum_groups("gated_rmsnorm squares", sums, {}, y, z, {}, {}, order);
}

void dots(const Tensor& sums, const Tensor& dout, const Tensor& y, const Tensor& z, const Tensor& weight,
          const Tensor& inv_rms, GateOrder order) {
  sum_groups("gated_rmsnorm dots", sums, dout, y, z, weight, inv_rms, order);
}

// Backward: a block has one group of one of the segments of ops/reduce.h and writes that segment's part of
// dweight. Each team has every teams-th row. Each thread adds up the parts of its channels in the order of
// the rows; then the sums of the teams are added in their order.
template <class T>
struct Gradients {
  Rows<T> dy, dz, dout;         // dy and dz may be null; dy may be dout
  Rows<float> dweight;          // [segments, channels]; may be null
  const float *inv_rms, *dots;  // dots: over groups on all ranks, or null: the kernel sums
};

constexpr int held_backward = 2;

/// What a thread holds of one row's pack.
template <class T>
struct RowPack {
  static constexpr int N = whole_pack<T>;
  Pack<T, N> y, z, dout;
  float s[N];  // sigmoid(z)
};

template <bool aligned, class T>
__device__ RowPack<T> load_row_pack(const Operands<T>& t, const Gradients<T>& d, std::int64_t row,
                                    std::int64_t channel, int count) {
  using Elements = Pack<T, whole_pack<T>>;
  RowPack<T> pack;
  pack.y = Elements::template load<aligned>(t.y.row(row) + channel, count);
  pack.z = Elements::template load<aligned>(t.z.row(row) + channel, count);
  pack.dout = Elements::template load<aligned>(d.dout.row(row) + channel, count);
  return pack;
}

/// Sets s and returns the pack's part of the sum over c of w dout g r; norm first, of w dout silu(z) y r.
/// Both are the same product.
template <class T, int N>
__device__ float dot_of(RowPack<T>& pack, const float (&w)[N], float r) {
  float y[N], z[N], up[N], dot = 0;
  pack.y.read(y);
  pack.z.read(z);
  pack.dout.read(up);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    pack.s[i] = sigmoid(z[i]);
    dot += w[i] * up[i] * (y[i] * (z[i] * pack.s[i]) * r);
  }
  return dot;
}

/// Adds the pack's part of dweight to `sums` and writes dy and dz.
template <GateOrder order, bool aligned, class T, int N>
__device__ void finish_row_pack(const Gradients<T>& d, std::int64_t row, std::int64_t channel, int count,
                                const RowPack<T>& pack, const float (&w)[N], float r, float mean,
                                float (&sums)[N]) {
  float y[N], z[N], up[N];
  pack.y.read(y);
  pack.z.read(z);
  pack.dout.read(up);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float gate = z[i] * pack.s[i];
    if constexpr (order == GateOrder::gate_first) {
      const float normed = y[i] * gate * r;
      sums[i] += up[i] * normed;
      const float back = r * (w[i] * up[i] - normed * mean);
      z[i] = back * (y[i] * silu_slope(z[i], pack.s[i]));
      y[i] = back * gate;
    } else {
      const float normed = y[i] * r, gated = up[i] * gate;
      sums[i] += gated * normed;
      z[i] = w[i] * up[i] * normed * silu_slope(z[i], pack.s[i]);
      y[i] = r * (w[i] * gated - normed * mean);
    }
  }
  if (d.dy) Pack<T, N>::of(y).template store<aligned>(d.dy.row(row) + channel, count);
  if (d.dz) Pack<T, N>::of(z).template store<aligned>(d.dz.row(row) + channel, count);
}

template <GateOrder order, class T, bool aligned, int team>
__global__ void __launch_bounds__(block_threads<team>)
    backward_kernel(const OrderedOperands<order, T> t, const Gradients<T> d) {
  constexpr int N = whole_pack<T>, teams = teams_of_block<team>;
  const std::int64_t segment = blockIdx.x / t.groups, group = blockIdx.x % t.groups, start = group * t.size;
  const int own_team = static_cast<int>(threadIdx.x) / team;
  const int first = static_cast<int>(threadIdx.x % team) * N, step = team * N;
  const std::int64_t begin = segment * segment_rows;
  const std::int64_t end = begin + segment_rows < t.rows ? begin + segment_rows : t.rows;
  const auto weight = [&](int c, float(&w)[N]) {
    t.weight.template read<aligned>(weight_start(t, start) + c, channels_from<aligned>(t, c), w);
  };
  float sums[held_backward][N] = {};

  for (std::int64_t row = begin + own_team; row < end; row += teams) {
    RowPack<T> held[held_backward];
    const float r = d.inv_rms[row * t.groups + group];
    const auto load = [&](int c) {
      return load_row_pack<aligned>(t, d, row, start + c, channels_from<aligned>(t, c));
    };
    float dot = 0;
#pragma unroll
    for (int k = 0; k < held_backward; ++k)
      if (const int c = first + k * step; c < t.size) held[k] = load(c);
#pragma unroll
    for (int k = 0; k < held_backward; ++k)
      if (const int c = first + k * step; c < t.size) {
        float w[N];
        weight(c, w);
        dot += dot_of(held[k], w, r);
      }
    if (d.dots) {
      dot = d.dots[row * t.groups + group];
    } else {
      for (int c = first + held_backward * step; c < t.size; c += step) {
        float w[N];
        weight(c, w);
        RowPack<T> pack = load(c);
        dot += dot_of(pack, w, r);
      }
      dot = team_sum<team>(dot);
    }
    const float mean = dot / t.mean_size;

#pragma unroll
    for (int k = 0; k < held_backward; ++k)
      if (const int c = first + k * step; c < t.size) {
        float w[N];
        weight(c, w);
        finish_row_pack<order, aligned>(d, row, start + c, channels_from<aligned>(t, c), held[k], w, r, mean,
                                        sums[k]);
      }
    // Channels beyond those in registers: their sums are in the segment's row of dweight, each element with
    // one thread.
    for (int c = first + held_backward * step; c < t.size; c += step) {
      float w[N], of_pack[N] = {};
      weight(c, w);
      float* const place = d.dweight ? d.dweight.row(segment) + start + c : nullptr;
      if (place && row > begin) read_values<aligned>(place, channels_from<aligned>(t, c), of_pack);
      RowPack<T> pack = load(c);
      dot_of(pack, w, r);
      finish_row_pack<order, aligned>(d, row, start + c, channels_from<aligned>(t, c), pack, w, r, mean,
                                      of_pack);
      if (place) write_values<aligned>(place, channels_from<aligned>(t, c), of_pack);
    }
  }

  if (!d.dweight) return;
  if constexpr (teams > 1) {
    __shared__ float of_teams[teams][held_backward][N][team];
    const int lane = threadIdx.x % team;
    if (own_team > 0) {
#pragma unroll
      for (int k = 0; k < held_backward; ++k)
#pragma unroll
        for (int i = 0; i < N; ++i) of_teams[own_team][k][i][lane] = sums[k][i];
    }
    __syncthreads();
    if (own_team > 0) return;
    for (int other = 1; other < teams; ++other)
#pragma unroll
      for (int k = 0; k < held_backward; ++k)
#pragma unroll
        for (int i = 0; i < N; ++i) sums[k][i] += of_teams[other][k][i][lane];
  }
#pragma unroll
  for (int k = 0; k < held_backward; ++k)
    if (const int c = first + k * step; c < t.size)
      write_values<aligned>(d.dweight.row(segment) + start + c, channels_from<aligned>(t, c), sums[k]);
}

void backward(const Tensor& dy, const Tensor& dz, const Tensor& dweight, const Tensor& dout, const Tensor& y,
              const Tensor& z, const Tensor& weight, const Tensor& inv_rms, const GroupSums& dots,
              GateOrder order) {
  visit_storage("gated_rmsnorm", y.dtype(), [&]<class T>(TypeTag<T>) {
    if (y.rows() == 0) return;
    const Operands<T> t = operands<T>(y, z, weight, inv_rms.cols(), dots.ranks);
    const Gradients<T> d{.dy = rows_of<T>(dy),
                         .dz = rows_of<T>(dz),
                         .dout = rows_of<T>(dout),
                         .dweight = rows_of<float>(dweight),
                         .inv_rms = data_of<float>(inv_rms),
                         .dots = dots.values.defined() ? data_of<float>(dots.values) : nullptr};
    visit_order(order, [&](auto chosen) {
      constexpr GateOrder fixed = decltype(chosen)::value;
      visit_layout(t, rows_aligned(dy, dz, dweight, dout, y, z, weight), held_backward,
                   [&](auto aligned, auto team) {
                     launch("gated_rmsnorm backward", backward_kernel<fixed, T, aligned, team>,
                            blocks_for(segments_of(t.rows) * t.groups, 1), block_threads<team>,
                            ordered<fixed>(t, weight), d);
                   });
    });
  });
}

const Provide provided[] = {{gated_rmsnorm_squares, squares},
                            {gated_rmsnorm_forward, forward},
                            {gated_rmsnorm_dots, dots},
                            {gated_rmsnorm_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda
