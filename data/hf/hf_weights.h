#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "data/json/atomic_file.h"
#include "data/safetensors/reader.h"
#include "model/config.h"

/// NemotronH weights in Hugging Face directories. In memory a tensor has its canonical name (see
/// tensor_specs: "backbone." prefix, experts stacked); files may say "model." for "backbone.",
/// "embedding.weight" for "embeddings.weight", and hold one tensor for each expert
/// ("...mixer.experts.3.up_proj.weight") or the stack ("...mixer.experts.up_proj"), in any mixture.
namespace nemocube {

struct NamedTensor {
  std::string name;  ///< canonical
  Tensor value;
};

/// The meaning of a name in a file: which canonical tensor, and which slice of it when experts are apart.
struct CanonicalPlace {
  std::string name;
  std::int64_t expert = -1;  ///< -1: the whole tensor
};
CanonicalPlace canonical_place(std::string_view name_in_file);
/// "...mixer.experts.up_proj", 3 -> "...mixer.experts.3.up_proj.weight"
std::string expert_tensor_name(std::string_view stacked_name, std::int64_t expert);

/// How a directory spells one canonical tensor: one part, or one for each expert.
struct WeightPart {
  std::string name;   ///< in the file
  std::string dtype;  ///< in the file, "BF16"
  std::string file;   ///< "model-00001-of-00002.safetensors"
};
struct WeightForm {
  bool per_expert = false;
  std::vector<WeightPart> parts;
};

/// What a model directory looked like, so that it can be written again in the same form.
struct WeightFiles {
  std::map<std::string, WeightForm, std::less<>> tensors;  ///< by canonical name
  std::vector<StoredIn> carried;  ///< tensors of multi-token prediction that nobody loaded, still mapped
  std::map<std::string, std::string>
      other_files;  ///< config.json, tokenizer files and the like: contents by name
};

/// An opened model directory. Only headers are read at first; values are borrowed from the mapped files, so a
/// rank that needs a slice touches no more than its pages.
class HfWeights {
 public:
  /// Throws Error when the files contradict each other or hold one tensor under two names.
  explicit HfWeights(const std::filesystem::path& directory);

  /// Throws one Error that lists, ten each with their number, tensors that are missing, unexpected ("mtp."
  /// never is), or of another shape or not floating. Shapes are those of `wanted`, which may be meta tensors.
  void check(std::span<const NamedTensor> wanted) const;
  bool has(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  /// Where the tensor is or, when the files have experts apart, each expert's in their order.
  std::vector<StoredIn> stored(std::string_view name) const;
  /// Copies the whole tensor, converting to the floating dtype of `into`.
  void read(std::string_view name, const Tensor& into) const;
  /// The form of the tensors named in `loaded`; other "mtp." tensors are carried.
  WeightFiles files(std::span<const NamedTensor> loaded) const;

 private:
  struct Entry {
    std::map<std::int64_t, StoredIn> parts;  // by expert; the whole tensor under -1
    bool per_expert() const { return parts.begin()->first >= 0; }
  };
  const Entry& at(std::string_view name) const;
  std::filesystem::path directory_;
  std::map<std::string, Entry, std::less<>> entries_;
};

/// check, read into every tensor that is not meta, files: fills `into` from a directory, tensor by tensor.
WeightFiles load_hf_weights(const std::filesystem::path& directory, std::span<const NamedTensor> into);

/// The form for a model that did not come from files: "backbone." names, one tensor for each expert, one
/// file, config.dtype (f32 when unset; keep_f32 tensors f32), and a config.json. Without multi-token
/// prediction.
WeightFiles default_weight_files(const NemotronHConfig& config);
/// The files beside the weights that travel with a model: config.json, generation_config.json, tokenizer and
/// chat template files, remote code. Files that are links to the outside are left out, with a warning that names
/// them, so that nobody's model directory makes us copy private files: a link may lead to a file in the
/// directory or, in a Hugging Face cache, to one in its `blobs`. config.json and tokenizer.json, known by what
/// they contain, may lie anywhere.
std::map<std::string, std::string> read_companion_files(const std::filesystem::path& directory);

/// The tensors under the names of the files, stacked experts split into views where the files have them
/// apart. Any subset of the model, in the same order.
std::vector<NamedTensor> to_file_names(std::span<const NamedTensor> tensors, const WeightFiles& files);

struct SaveOptions {
  /// dtype in the files; absent: for each tensor as in the source (f16, which is never written, becomes f32).
  /// bf16 leaves keep_f32 tensors in f32. config.json is changed to match.
  std::optional<DType> dtype;
  /// Absent: divided into files like the source. Otherwise at most so many bytes in a file; 0: one file.
  std::optional<std::int64_t> most_shard_bytes;
};

/// Writes a directory in the form of `files`. `tensors` are all of files.tensors, in the order in which they
/// should fill new shards; carried tensors and other files are written as they are, bit for bit. Streams from
/// the given memory: no second copy of the model is made.
///
/// Crash-safe: everything is written and synced under a hidden temporary name beside `directory`, which then
/// takes its name in one step (StagingDirectory). `directory` must not exist or be empty: nothing is ever overwritten (Error).
/// Returns what was written, by name of the file.
FileSums save_hf_weights(const std::filesystem::path& directory, std::span<const NamedTensor> tensors,
                         const WeightFiles& files, const SaveOptions& options = {});

/// Copies the model directory `from` to `to` like save_hf_weights, one tensor at a time from the mapped
/// files. Without options.dtype every tensor keeps its bits (F16, which is never written, becomes F32).
void copy_hf_model(const std::filesystem::path& from, const std::filesystem::path& to,
                   const SaveOptions& options = {});

}  // namespace nemocube
