#pragma once
#include "core/autograd.h"
#include "ops/vocabulary_part.h"

namespace nemocube {

/// y[t, :] = scale weight[ids[t], :]
///
/// The vocabulary may be cut over ranks (VocabularyPart). The rows of weight are then those of the rank's own
/// tokens, y[t, :] = scale weight[ids[t] - begin, :] for these and 0 for the tokens of other ranks. All ranks
/// pass the same ids, and the sum of their y is y of the whole weight. The caller forms the sum: nothing is
/// sent.
///
/// shapes     ids [T], weight [V, h] (of a part: its tokens) -> y [T, h]; T, V, h >= 0
/// layout     the last dimension of weight contiguous, row stride free; y contiguous
/// devices    CPU, CUDA
/// dtypes     ids i64; weight f32, f64 (CPU) or bf16; y as weight: an exact copy of the rows with a scale of
///            1, else the product in the dtype of the arithmetic, rounded once
/// backward   dweight[v, :] = sum of scale dy[t, :] over the t with ids[t] = v, in ascending t, added in f32
///            (f64 for f64). Every element of a leaf's gradient is written, also the rows that no id names.
///            `ids` is kept, not copied, and must not change before the backward pass.
/// ids        in [0, V), on the device of weight. The caller checks ids; here an id that no part has gives 0
/// errors     wrong rank or dtype; scale not finite
/// repeat     same bits for any number of threads
/// source     the cut as in VocabParallelEmbedding of NVIDIA/Megatron-LM
Var embedding(Context& ctx, const Tensor& ids, const Var& weight, const VocabularyPart& part = {},
              double scale = 1);

}  // namespace nemocube
