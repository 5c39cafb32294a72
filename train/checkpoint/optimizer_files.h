#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/files/on_bytes.h"
#include "data/json/atomic_file.h"
#include "data/safetensors/part_reader.h"
#include "parallel/comm/world.h"
#include "train/optimizer/optimizer.h"
#include "train/recipe/recipe.h"

/// The state of an optimizer (Optimizer::state()) in the directory optim/ of a checkpoint: one rank writes
/// optimizer.safetensors, rank 2 of 8 writes optimizer-00002-of-00008.safetensors, with the state that it
/// owns. index.json names every tensor of the whole model's state, and the files with its parts:
///     {"tensors": {"exp_avg.lm_head.weight": {"dtype": "F32", "parts": {
///         "optimizer-00000-of-00008.safetensors": {"shape": [512, 64], "ranges": [[[0, 256]], [[0, 64]]],
///         "flat": [0, 1000]}, ...}}}}
/// with the parts as data/safetensors/shard_json.h describes them. A part of a tensor that has a flat range
/// (Shard) is stored with one dimension. The metadata of the file of one of several ranks has an entry
/// "shards", JSON with the part of each of its tensors; checkpoints of 0.1.0 have these entries and no index.
///
/// Where several ranks own the same part of a tensor (DDP, replicas of HSDP, norms under tensor parallelism),
/// the lowest one writes it. A rank that has nothing to write makes no file.
namespace nemocube {

/// The part of the state that this rank writes, in the shape of its file. The tensors share the memory of the
/// optimizer. All ranks call together.
std::vector<StateTensor> written_state(const Optimizer& optimizer, Communicator* ranks = nullptr);

/// Writes the files, in an existing directory: this rank writes `state`, the result of
/// written_state(). All ranks call together; returns the sums of all files by name, on every
/// rank. on_bytes counts the bytes of this rank.
FileSums save_optimizer(const std::filesystem::path& directory, std::span<const StateTensor> state,
                        Communicator* ranks = nullptr, const OnBytes& on_bytes = {});

/// The state in a directory, written by any number of ranks. Holds headers only.
class StoredOptimizer {
 public:
  /// Throws Error naming the file that is missing or damaged, or that contradicts the
  /// index about its tensors or its part of one.
  explicit StoredOptimizer(const std::filesystem::path& directory);

  struct Entry {
    std::string dtype;  ///< as in the files
    Shape shape;        ///< of the global tensor
    std::vector<StoredPart> parts;
  };
  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }

  /// Throws one Error that lists tensors of `wanted` that are missing or of another shape, and stored tensors
  /// that no rank wants: for each kind the number and the first ten. `strictness` may turn some of these into
  /// a warning, or into nothing. All ranks call together; they may want different tensors.
  void check(std::span<const StateTensor> wanted, Strictness strictness = Strictness::raise_all,
             Communicator* ranks = nullptr) const;
  /// Reads each `value`, converting to its dtype, wherever its elements lie in the files. Tensors that are
  /// not stored stay as they are. All ranks call together; they may want different tensors. See read_parts().
  BytesRead read(std::span<const StateTensor> wanted, Communicator* node = nullptr,
                 const OnBytes& on_bytes = {}) const;

 private:
  void open_index(const std::filesystem::path& index);
  void open_files();
  void add(const std::string& name, const std::shared_ptr<const SafetensorsFile>& file, const Shard& shard);
  std::filesystem::path directory_;
  std::map<std::string, Entry> tensors_;
};

}  // namespace nemocube
