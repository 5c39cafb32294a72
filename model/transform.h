#pragma once
#include <cstdint>
#include <functional>
#include <map>

#include "core/autograd.h"
#include "model/tensor_name.h"
#include "ops/sequences.h"

/// What parallelism installs in a model from outside. Where several devices share the rows of a microbatch,
/// the `Sequences` that are passed around describe the whole microbatch, and a device has some of its rows.
namespace nemocube {

/// A differentiable map of activations, such as a collective of tensor parallelism. Empty: the identity.
using Transform = std::function<Var(Context&, const Var&, const Sequences& whole)>;

inline Var apply(const Transform& transform, Context& ctx, const Var& x, const Sequences& whole) {
  return transform ? transform(ctx, x, whole) : x;
}

/// The role of a transform's point in its block.
enum class PointRole : std::uint8_t {
  other,
  way_in,     ///< all rows of the residual stream enter the block here
  way_out,    ///< the block's rows go back to the residual stream here; a layer that is cut has partial sums
  routed_in,  ///< into, and out of, the work on rows that a rank routes to experts
  routed_out,
  experts_out,  ///< the rows of the experts that are here, before they go back to their tokens
};

/// The way in and the way out of several blocks whose mixers work on one norm (Residual::shared_norm). The
/// rows enter once for all mixers, behind the norm, and the mixers' outputs are added before they leave. A
/// mixer with a norm behind it has a way out of its own.
struct SharedWays {
  /// Both are installed or neither. Without them each mixer gets the rows of the norm, and adds its own
  /// output to the residual stream.
  Transform in, out;
  /// `out` is a sum over devices, and another device adds the biases of the layers before it. The gradients
  /// of biases are whole on every device, because each has the gradient of all rows.
  bool biases_elsewhere = false;
};

/// The rows that a point has of each sequence, in their order. Empty: all.
using RowCut = std::function<Sequences(const Sequences& whole)>;

/// A point where a transform can be installed.
struct TransformPoint {
  Transform* transform;
  PointRole role = PointRole::other;
  /// The module whose cut decides a way in or out, or a routed one: mixer_name(3, "q_proj")
  TensorName module = {};
  /// Where parallelism stores which rows this rank has here, for a layer behind the input or code behind the
  /// output that draws random numbers by row. Null: nothing behind the point draws.
  RowCut* rows = nullptr;
  /// Several blocks share this way: its transform is the same at all of their points. Routed experts beside a
  /// shared way get all rows, as the way does.
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
