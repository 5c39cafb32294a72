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

/// What a point for a transform is to the block that has it.
enum class PointRole : std::uint8_t {
  other,
  way_in,     ///< all rows of the residual stream enter the block here
  way_out,    ///< the block's rows go back to the residual stream here; a layer that is cut has partial sums
  routed_in,  ///< around what is computed for the rows that a rank routes to experts
  routed_out,
  experts_out,  ///< the rows of the experts that are here, before they go back to their tokens
};

/// The way in and the way out that the mixers of several blocks on one norm have in common
/// (Residual::shared_norm): the rows that all of them get enter once, behind the norm, and their outputs are
/// added before they leave. A mixer with a norm behind it has a way out of its own.
struct SharedWays {
  /// Both are installed, or none: then each mixer gets the rows of the norm, and its output is added to the
  /// residual stream by itself.
  Transform in, out;
  /// `out` is a sum over devices, and another one adds the biases of the layers before it. Their gradients
  /// are whole on each of these devices, because each has the gradient of all rows.
  bool biases_elsewhere = false;
};

/// The rows that a point has of each sequence, in their order. Empty: all.
using RowCut = std::function<Sequences(const Sequences& whole)>;

/// A point where a transform can be installed.
struct TransformPoint {
  Transform* transform;
  PointRole role = PointRole::other;
  /// On whose cut a way in or out, or what is routed beside one, depends: mixer_name(3, "q_proj")
  TensorName module = {};
  /// Parallelism sets here which rows this rank has, for the layer behind a way in or the code behind a way
  /// out that draws for rows; null: nothing asks for them.
  RowCut* rows = nullptr;
  /// Several blocks have this way in common: its transform is the same at all of their points. Beside a
  /// shared way what is routed has all rows, as the way has.
  SharedWays* shared = nullptr;
};

/// Where transforms can be installed, by name:
///   <linear layer> / "input", <linear layer> / "output", such as mixer_name(3, "o_proj.output")
///   <attention> / "qkv.input"                             shared by q_proj, k_proj and v_proj
///   <gated MLP> / "gate_up.input"                         shared by gate_proj and up_proj
///   <moe> / "routed.input", <moe> / "routed.output"       around router, latent projections and routed
///                                                         experts
///   <moe> / "experts.output"                              the rows of experts that are here, before they go
///                                                         back to their tokens
///   embeddings_name() / "output", head_name() / "input"
using TransformPoints = std::map<TensorName, TransformPoint>;

}  // namespace nemocube
