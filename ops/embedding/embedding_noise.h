#pragma once
#include "core/rng.h"
#include "core/tensor.h"

namespace nemocube {

/// Uniform noise of a given magnitude for the output of an embedding.
///
/// The draw of an element depends on the stream and on the numbers of its row and column alone, not on the
/// layout, the device or the number of threads.
struct EmbeddingNoise {
  RandomStream stream;
  /// f64 [1], on the device of y: m. A captured CUDA graph reads the value that is there when it runs.
  Tensor magnitude;
  /// i64 [T], on the device of y: the number of each row among the rows of all steps, so that no two steps
  /// draw alike. A captured CUDA graph reads the numbers that are there when it runs.
  Tensor row_numbers;
};

/// y[t, c] <- y[t, c] + m v[t, c], with v uniform in (-1, 1)
///
/// v = (2 k + 1) 2^-24 with k the upper 24 bits of the element's draw (RandomTable) as a signed number, so v
/// is exact in f32, symmetric about 0 and never 0. The sum has the gradient of y: nothing is recorded, and y
/// keeps its node.
///
/// shapes     y [T, h]; T, h >= 0
/// dtypes     f32, f64 (CPU) or bf16
/// arithmetic m v is rounded to f32 (f64 for f64) and added in that type; the sum is rounded once
/// layout     row stride of y free
/// aliasing   y is overwritten: no recorded operation may need its value from before
/// devices    CPU, CUDA: the same bits
/// errors     Error for shapes, dtypes and devices that do not fit
/// repeat     same bits for any number of threads
/// source     Jain et al., "NEFTune: Noisy Embeddings Improve Instruction Finetuning", 2023
void add_embedding_noise(const Tensor& y, const EmbeddingNoise& noise);

}  // namespace nemocube
