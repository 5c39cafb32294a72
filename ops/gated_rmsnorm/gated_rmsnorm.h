#pragma once
#include <cstdint>

#include "core/autograd.h"
#include "ops/rank_reduction.h"

namespace nemocube {

/// How norm groups span ranks: each of `ranks` ranks holds an equal share of the channels of each of its
/// groups. The reduction runs over these ranks and must live until the backward pass.
struct NormGroupPart {
  RankReduction* reduction = nullptr;  ///< null: each group is whole, `ranks` stays 1
  std::int64_t ranks = 1;
};

/// What comes first behind a scan.
enum class GateOrder : std::uint8_t { gate_first, norm_first };

/// RMS norm and gate of a value within groups of consecutive channels. Gate first, then norm:
///   g = y silu(z),   r = 1 / sqrt(mean_group(g^2) + eps),   out = weight g r
/// Backward, with u = weight dout and dg = r (u - g r mean_group(u g r)):
///   dy = dg silu(z),   dz = dg y silu'(z),   dweight = sum over tokens of dout g r
/// Norm first, then gate:
///   r = 1 / sqrt(mean_group(y^2) + eps),   out = weight y r silu(z)
/// Backward, with u = weight silu(z) dout:
///   dy = r (u - y r mean_group(u y r)),   dz = weight y r dout silu'(z)
///   dweight = sum over tokens of dout y r silu(z)
/// Where groups span ranks (NormGroupPart), the means run over the channels of all these ranks.
///
/// shapes     y, z, out [T, d]; weight [d]; d a multiple of groups; T may be 0. Norm first: weight may be
///            [d / groups], which all groups share; its gradient sums over groups, too. With a part, d are
///            the channels that this rank holds, and groups the groups that it has a share of.
/// layout     y and z may be views of wider rows
/// devices    CPU, CUDA
/// dtypes     y, z and out alike: f32, f64 (CPU) or bf16; weight: the dtype of y or its accumulation dtype
/// arithmetic f32 (f64 for f64), rounded once at the end; each group is summed in a fixed order
/// keeps      y, z, weight and r [T, groups]
/// messages   with a part: one sum [T, groups] in the dtype of the arithmetic in forward, one in backward;
///            none when T is 0
/// errors     Error on shapes, dtypes and groups that do not fit
/// source     Mamba-2, state-spaces/mamba: RMSNormGated with a group size and either norm_before_gate
Var gated_rmsnorm(Context& ctx, const Var& y, const Var& z, const Var& weight, std::int64_t groups,
                  double eps, const NormGroupPart& part = {}, GateOrder order = GateOrder::gate_first);

}  // namespace nemocube
