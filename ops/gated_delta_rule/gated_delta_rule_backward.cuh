#pragma once
#include "ops/gated_delta_rule/gated_delta_rule.cuh"

/// Parts of backward that kernels for every size and kernels on tensor cores share.
namespace nemocube::cuda::delta_rule {

/// What backward writes.
template <class T>
struct Gradients {
  Rows<float> inverses;
  Rows<float> dQ, dK;  // [T, value_heads * key_dim]: of the normalised rows, for each value head
  Rows<T> dq, dk, dv, da, db;
  float *dA_log, *ddt_bias;  // [chunks, value_heads]
};
template <class T>
Gradients<T> gradients_of(const DeltaRuleGradients& g, const Tensor& inverses, const Tensor& dQ,
                          const Tensor& dK) {
  return {.inverses = rows_of<float>(inverses),
          .dQ = rows_of<float>(dQ),
          .dK = rows_of<float>(dK),
          .dq = rows_of<T>(g.q),
          .dk = rows_of<T>(g.k),
          .dv = rows_of<T>(g.v),
          .da = rows_of<T>(g.a),
          .db = rows_of<T>(g.b),
          .dA_log = data_of<float>(g.A_log),
          .ddt_bias = data_of<float>(g.dt_bias)};
}

/// What each token's dg and dbeta are summed from.
struct TokenSums {
  float crossing[tile];  // products between tokens of the chunk that cross to this token
  float read[tile];      // from_start dO S^T Q
  float erased[tile];    // Z S^T K
  float ended[tile];     // to_end U R^T K
  float direct[tile];    // the part of dbeta from products between tokens
  float values[tile];    // Z V
  float parts[tile_threads / warp_threads];
};

/// crossing[t] = the sum of W[l, s] over s < t <= l; W[l, s] is zero for s >= l. Overwrites W.
__device__ inline void sum_crossing(float (&crossing)[tile], PairTile& W) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread < tile) {
    float below = 0;
    for (int l = tile - 1; l > thread; --l) {
      below += W.rows[l][thread];
      W.rows[l][thread] = below;
    }
  }
  __syncthreads();
  constexpr int of_row = tile_threads / tile;
  float sum = 0;
  for (int s = thread % of_row; s < thread / of_row; s += of_row) sum += W.rows[thread / of_row][s];
  sum = warp_sum<of_row>(sum);
  if (thread % of_row == 0) crossing[thread / of_row] = sum;
  __syncthreads();
}

/// Gradients of a, b, A_log and dt_bias of one head. `across` crosses the whole chunk. One warp.
template <class T>
__device__ void finish_tokens(const Rule<T>& rule, const Gradients<T>& g, const HeadPart<T>& part,
                              const HeadTokens& t, const TokenSums& sums, float across) {
  constexpr int own_tokens = tile / warp_threads;
  const float rate = rule.rate(part.head);
  float decay = 0, bias = 0;
#pragma unroll
  for (int i = 0; i < own_tokens; ++i) {
    const int l = static_cast<int>(threadIdx.x) + i * warp_threads;
    if (l >= part.at.n) continue;
    float ended = 0, started = 0;
    for (int s = 0; s < l; ++s) ended += sums.ended[s];
    for (int s = part.at.n - 1; s >= l; --s)
      started += sums.read[s] - t.beta[s] * t.from_start[s] * sums.erased[s];
    const float dg = sums.crossing[l] + across + ended + started;
    const float da = dg * rate * softplus_grad(t.a[l]);
    const float dbeta = sums.direct[l] + (sums.values[l] - t.from_start[l] * sums.erased[l]);
    g.da.row(part.at.t0 + l)[part.head] = rounded<T>(da);
    g.db.row(part.at.t0 + l)[part.head] = rounded<T>(dbeta * t.beta[l] * t.rest[l]);
    decay += dg * t.dt[l];
    bias += da;
  }
  decay = warp_sum(decay);
  bias = warp_sum(bias);
  if (threadIdx.x == 0) {
    g.dA_log[blockIdx.x] = rate * decay;
    g.ddt_bias[blockIdx.x] = bias;
  }
}

/// The gradient of a row of q or k: the sum over value heads, through the normalisation.
template <bool packs, class T>
__global__ void __launch_bounds__(row_threads)
    normalisation_gradients_kernel(const Rule<T> rule, const Gradients<T> g, std::int64_t rows) {
  const std::int64_t index = row_of_warp();
  if (index >= rows) return;
  const KeyRow<T> row(rule, index);
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, heads = rule.own_heads();
  const T* const x = row.values(rule);
  T* const to = (row.of_q ? g.dq : g.dk).row(row.token) + row.at;
  const float* const parts = (row.of_q ? g.dQ : g.dK).row(row.token) + row.at * heads;
  const float inverse = g.inverses.row(row.token)[row.column], scale = row.of_q ? rule.q_scale : 1;
  if constexpr (packs) {
    const int first = lane * 4, count = rule.key_dim - first;
    float y[4], sum[4] = {}, along = 0;
    Pack<T, 4>::load(x + first, count).read(y);
    for (int h = 0; h < heads; ++h) {
      float part[4];
      Pack<float, 4>::load(parts + std::int64_t{h} * rule.key_dim + first, count).read(part);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += part[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[i] *= inverse;
      sum[i] *= scale;
      along += sum[i] * y[i];
    }
    along = warp_sum(along);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = inverse * (sum[i] - along * y[i]);
    Pack<T, 4>::of(sum).store(to + first, count);
  } else {
    const auto gradient = [&](int i) {
      float sum = 0;
      for (int h = 0; h < heads; ++h) sum += parts[std::int64_t{h} * rule.key_dim + i];
      return sum * scale;
    };
    float along = 0;
    for (int i = lane; i < rule.key_dim; i += warp_threads) along += gradient(i) * (to_float(x[i]) * inverse);
    along = warp_sum(along);
    for (int i = lane; i < rule.key_dim; i += warp_threads)
      to[i] = rounded<T>(inverse * (gradient(i) - along * (to_float(x[i]) * inverse)));
  }
}

/// `q` and `k` are the problem's, `to` is what was asked for.
template <class T>
void add_value_heads(const Rule<T>& rule, const Gradients<T>& g, const Tensor& q, const Tensor& k,
                     const DeltaRuleGradients& to) {
  const std::int64_t rows = q.rows() * 2 * rule.key_heads;
  launch("gated_delta_rule normalisation gradients",
         rows_in_packs(rule.key_dim, q, k, to.q, to.k) ? normalisation_gradients_kernel<true, T>
                                                       : normalisation_gradients_kernel<false, T>,
         blocks_for(rows, row_warps), row_threads, rule, g, rows);
}

}  // namespace nemocube::cuda::delta_rule
