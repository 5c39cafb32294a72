#pragma once
#include <filesystem>

#include "model/stack.h"
#include "parallel/comm/world.h"
#include "train/optimizer/optimizer.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// Reads the weights of a checkpoint and the state of its optimizer, of any layout
/// and dtype. Each rank gets its own parts; the ranks of one node together read
/// each byte once. All ranks call together.
///
///     written in    read into bf16                           read into f32 (f64)
///     bf16          weights; masters; moments                weights from the masters; moments
///     f32 (f64)     weights rounded; masters from weights    weights; moments
///
/// Of the keys in `section`, load_optim, finetune and strictness count here. An optimizer that is not
/// restored stays new, with the weights as its masters.
/// errors  Error that names the file and the part that is damaged, missing, unexpected or of another shape
void restore_tensors(const std::filesystem::path& checkpoint, Stack& model, Optimizer& optimizer,
                     const CheckpointSection& section, World* world = nullptr);

}  // namespace nemocube
