#pragma once
#include <cstdint>
#include <functional>
#include <map>

#include "core/autograd.h"
#include "model/tensor_name.h"
#include "ops/sequences.h"

/// What parallelism installs in a model from outside. Where several devices share the rows of a microbatch,
/// `Sequences` passed around are those of the whole microbatch, and each place has some of the rows.
namespace nemocube {

/// A differentiable map of activations, such as a collective of tensor parallelism. Empty: the identity.
using Transform = std::function<Var(Context&, const Var&, const Sequences& whole)>;

inline Var apply(const Transform& transform, Context& ctx, const Var& x, const Sequences& whole) {
  return transform ? transform(ctx, x, whole) : x;
}

/// What a place for a transform is to the block that has it.
enum class PointPlace : std::uint8_t {
  other,
  way_in,     ///< all rows of the residual stream enter the block here
  way_out,    ///< the block's rows go back to the residual stream here; a layer that is cut has partial sums
  routed_in,  ///< around what is computed for the rows that a rank routes to experts
  routed_out,
  experts_out,  ///< the rows of the experts that are here, before they go back to their tokens
};

/// The rows that a place has of each sequence, in their order. Empty: all.
using RowCut = std::function<Sequences(const Sequences& whole)>;

/// A place where a transform can be installed.
struct TransformPoint {
  Transform* transform;
  PointPlace place = PointPlace::other;
  TensorName module = {};  ///< on whose cut a way in or out depends: mixer_name(3, "q_proj")
  /// Parallelism sets here which rows this rank has, for the layer behind a way in or the code behind a way
  /// out that draws for rows; null: nothing asks for them.
  RowCut* rows = nullptr;
};

/// Where transforms can be installed, by name:
///   <linear layer> / "input", <linear layer> / "output", such as mixer_name(3, "o_proj.output")
///   <attention> / "qkv.input"                             shared by q_proj, k_proj and v_proj
///   <gated MLP> / "gate_up.input"                         shared by gate_proj and up_proj
///   <moe> / "routed.input", <moe> / "routed.output"       around router, latent projections and routed experts
///   <moe> / "experts.output"                              the rows of experts that are here, before they go back to their tokens
///   embeddings_name() / "output", head_name() / "input"
using TransformPoints = std::map<TensorName, TransformPoint>;

}  // namespace nemocube
