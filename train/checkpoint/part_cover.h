#pragma once
#include <string>
#include <vector>

#include "train/checkpoint/optimizer_files.h"

namespace nemocube {

/// Tensors of an optimizer's files with elements that no file holds, or, with `compare`, that two files hold
/// with different bits: ranks of tensor parallelism with copies of one head each write their copy
/// (train/checkpoint/optimizer_files.h). Returns a text for each such tensor, which names it and the first
/// element. Throws Error naming a file that cannot be read.
std::vector<std::string> cover_faults(const StoredOptimizer& stored, bool compare);

}  // namespace nemocube
