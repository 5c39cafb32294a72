#pragma once
#include "core/autograd.h"

namespace nemocube {

/// y = x s, with one number s that lies on the device and is not trained: the layer_scalar behind a layer of
/// Gemma 4. scale() of ops/scale_columns has a factor that the host knows.
///
/// shapes     x, y [..., n], any of them may be 0; s has one element, in any number of dimensions
/// layout     rows of x may be strided; y is contiguous
/// dtypes     x and y alike: f32, f64 (CPU) or bf16; s the same, or f32 with bf16. bf16 is computed in f32
///            and rounded once
/// devices    CPU, CUDA. The host does not read s
/// memory     y overwrites x when no other tensor shares the storage of x
/// gradient   dx = dy s; none of s. Keeps s, which must not change before the backward pass. dx overwrites dy
///            when nobody else holds it
/// errors     Error when x or s is undefined, x is not of a floating dtype or has no dimension, s has another
///            dtype or device, or not one element
/// source     `layer_scalar` of Gemma 4 (Hugging Face Transformers)
Var scale_by(Context& ctx, Var x, const Tensor& s);

}  // namespace nemocube
