#pragma once
#include <filesystem>

#include "data/json/atomic_file.h"
#include "parallel/comm/communicator.h"
#include "train/optimizer/optimizer.h"

/// The state of an optimizer (Optimizer::state()) in the directory optim/ of a checkpoint: one rank writes
/// optimizer.safetensors, rank 2 of 8 writes optimizer-00002-of-00008.safetensors, with the state of what it owns.
/// A part of a tensor that has a flat range (Shard) is stored with one dimension. The metadata of the file of one
/// of several ranks has an entry "shards", JSON that says for each tensor of the file which part it is:
///     {"exp_avg.lm_head.weight": {"shape": [512, 64], "ranges": [[[0, 256]], [[0, 64]]], "flat": [0, 1000]}}
/// "shape" is that of the global tensor. "ranges" are Shard::ranges(), absent where no dimension is cut; "flat" is
/// Shard::flat_range(), absent where there is none. A whole tensor has its global shape.
///
/// Of ranks that own the same part of a tensor (DDP, replicas of HSDP, norms under tensor parallelism) the lowest
/// writes that part, and the others read it from its file. A rank that has nothing to write makes no file.
namespace nemocube {

/// Writes the files, in an existing directory. All ranks call together; returns the sums of all files by name,
/// on every rank.
FileSums save_optimizer(const std::filesystem::path& directory, const Optimizer& optimizer,
                        Communicator* ranks = nullptr);

/// Reads them into an optimizer of the same kind on the same layout. All ranks call together. Throws Error naming
/// the file and what in it is missing, unexpected, of another shape or another part.
void load_optimizer(const std::filesystem::path& directory, Optimizer& optimizer,
                    Communicator* ranks = nullptr);

}  // namespace nemocube
