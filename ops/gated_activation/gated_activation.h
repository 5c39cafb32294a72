#pragma once
#include <cstdint>

#include "core/autograd.h"

namespace nemocube {

/// phi of a gated MLP or of an output gate. Hugging Face's ACT2FN calls them "silu", "gelu_pytorch_tanh" and
/// "sigmoid".
enum class GateActivation : std::uint8_t {
  silu,       ///< g s with s = 1 / (1 + e^-g): SwiGLU
  gelu_tanh,  ///< g/2 (1 + tanh(c (g + 0.044715 g^3))) with c = sqrt(2/pi): GeGLU
  sigmoid     ///< s: an output gate of attention
};

/// y = phi(gate) up, the activation of a gated MLP, or the result `up` of attention times its output gate.
///
/// shapes     gate, up, y alike, any
/// layout     rows of gate and up may be strided, such as windows of one projection [T, 2 I]; y is contiguous
/// dtypes     gate, up and y alike: f32, f64 (CPU) or bf16; bf16 is computed in f32 and rounded once
/// devices    CPU, CUDA
/// memory     y overwrites gate, else up, when nothing is recorded and no other tensor shares the storage;
///            gated_activation(ctx, linear(..), linear(..), phi) then allocates nothing
/// gradient   dup = dy phi(gate),   dgate = dy up phi'(gate)
///                silu        phi' = s (1 + g (1 - s))
///                gelu_tanh   phi' = (1 + t)/2 + g/2 (1 - t^2) c (1 + 3 * 0.044715 g^2),   t the tanh
///                sigmoid     phi' = s (1 - s)
///            Keeps gate and up. An operation that needs y in backward computes y again (GradNode::again):
///            another forward pass, for a third less memory. dgate overwrites gate, and dup up, when no other
///            tensor shares the storage as the closure runs; where one is shared, dy gives its place under
///            the same condition. The form above allocates nothing in backward
/// accuracy   In f32 the error of phi is below 4e-7 |g|, of phi' below 6e-6; of sigmoid both errors are below
///            4e-7. For g far from 0 phi is 0 or g, and phi' 0 or 1, also where g is infinite; sigmoid is 0
///            or 1 there, and its phi' 0. NaN in gate gives NaN in y, dgate and dup, NaN in up in y and dgate
/// errors     Error when gate or up is undefined, gate is not of a floating dtype, or dtypes or shapes differ
/// source     "GLU variants improve transformer" (Shazeer, 2020); the tanh form of GELU: "Gaussian error
///            linear units" (Hendrycks and Gimpel, 2016); the sigmoid of an output gate: "Gated attention for
///            large language models" (Qiu et al., 2025)
Var gated_activation(Context& ctx, Var gate, Var up, GateActivation phi);

/// The same with both operands in one tensor [..., 2 I]: gate are the first I columns, up the others.
/// y is [..., I], new memory.
///
/// layout     row stride free
/// gradient   as above; both overwrite gate_up when no other tensor shares its storage as the closure runs
/// errors     Error when gate_up is undefined, not of a floating dtype, or of an odd last dimension
Var gated_activation(Context& ctx, Var gate_up, GateActivation phi);

}  // namespace nemocube
