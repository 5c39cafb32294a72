#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shard.h"
#include "data/files/on_bytes.h"
#include "data/json/atomic_file.h"
#include "data/safetensors/part_reader.h"
#include "data/safetensors/reader.h"
#include "model/config.h"
#include "parallel/comm/world.h"

/// Weights in Hugging Face directories. In memory a tensor has its canonical name (see tensor_specs:
/// "backbone." prefix, experts stacked); files may say "model." or nothing for "backbone.",
/// "embedding.weight" for "embeddings.weight", and hold one tensor for each expert
/// ("...mixer.experts.3.up_proj.weight") or the stack ("...mixer.experts.up_proj"). A stack
/// "...experts.gate_up_proj" of gated experts is two tensors for each expert, gate_proj and up_proj, which
/// are the two halves of the expert's rows. One model may mix both forms. Names may begin with the prefixes
/// of data/hf/language_part.h; prefixes of wrappers are not written again. "...rotary_emb.inv_freq" of
/// older files is not read, and not written again.
namespace nemocube {

struct NamedTensor {
  std::string name;  ///< canonical
  Tensor value;      ///< a meta tensor where only other ranks have elements: neither read nor saved here
  /// Where the elements of `value` lie in the tensor of this name; absent: `value` is the whole tensor.
  std::optional<Shard> shard = {};
  bool counts = true;  ///< false: other ranks have the same elements and save them
  /// Elements of `value` that other ranks save, ascending; usually empty.
  std::vector<Range> counted_elsewhere = {};
  bool keep_f32 = false;  ///< f32 in files of bf16 (TensorSpec::keep_f32)
  const Shape& global_shape() const { return shard ? shard->global_shape() : value.shape(); }
};

/// The part of a tensor that a tensor of a file is.
struct TensorPart {
  std::int64_t expert = -1;  ///< -1: the whole tensor
  int half = -1;             ///< 0 or 1: that half of the expert's rows; -1: all
  auto operator<=>(const TensorPart&) const = default;
};
/// The canonical tensor that a name in a file stands for, or a part of that tensor.
struct CanonicalTensor {
  std::string name;
  TensorPart part = {};
};
CanonicalTensor canonical_tensor(std::string_view name_in_file, const NameTable& names);
/// The tensors of one expert in files that separate experts: "...mixer.experts.up_proj", "3" ->
/// "...mixer.experts.3.up_proj.weight", and of "...mlp.experts.gate_up_proj" those of gate_proj and up_proj.
std::vector<std::string> expert_tensor_names(std::string_view stacked_name, std::string_view expert);

/// How a directory stores one canonical tensor: as one part, or as one or two parts for each expert, in the
/// order of experts and halves.
struct WeightPart {
  std::string name;   ///< in the file
  std::string dtype;  ///< in the file, "BF16"
  std::string file;   ///< "model-00001-of-00002.safetensors"
};
struct WeightForm {
  bool per_expert = false;
  std::vector<WeightPart> parts;
};

/// The form of a model directory, so that a model can be saved in the same form.
struct WeightFiles {
  std::map<std::string, WeightForm, std::less<>> tensors;  ///< by canonical name
  /// Tensors of multi-token prediction and of other parts that were not loaded. Their files stay open.
  std::vector<StoredIn> carried;
  std::map<std::string, std::string>
      other_files;  ///< config.json, tokenizer files and the like: contents by name, with a folder or without
};

/// An opened model directory. Only headers are read at first; a rank that needs a slice reads
/// little more than that slice. Weights that the directory leaves to another one
/// (data/hf/frozen_weights.h) are read there.
class HfWeights {
 public:
  /// Throws Error when the files contradict each other or hold one tensor under two names.
  HfWeights(const std::filesystem::path& directory);  // NOLINT(google-explicit-constructor)

  /// Throws one Error that lists the tensors that are missing, unexpected ("mtp." tensors and the head never
  /// are, nor those that the family leaves unread, NameTable::unread), or of a wrong shape or no floating
  /// dtype: for each kind the number and the first ten. `wanted` gives the shapes and may hold meta tensors.
  void check(std::span<const NamedTensor> wanted) const;
  /// For files with a head that is not `loaded`, because the model's head is its embeddings.
  /// Throws Error unless both have the same values, because transformers would not tie them
  /// either, and warns that the head is not read.
  void check_tied_head(std::span<const NamedTensor> loaded) const;
  bool has(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  std::int64_t bytes() const;  ///< of all tensors
  /// The first quantized tensor, for messages: "FILE: 'NAME'"; nothing without one.
  std::optional<std::string> quantized() const;
  /// Where the tensor is stored: one place, or, when the files
  /// separate experts, those of each expert in order (WeightForm).
  std::vector<StoredIn> stored(std::string_view name) const;
  /// The same as parts of the canonical tensor, which has this shape. Error where the files hold other
  /// experts.
  std::vector<StoredPart> parts(std::string_view name, const Shape& shape) const;
  /// Copies from the files into each `value` that is not meta, converting to its floating dtype. The ranks of
  /// `node` call together, with the same names, and read each byte once (data/safetensors/part_reader.h);
  /// null: one rank.
  BytesRead read(std::span<const NamedTensor> into, Communicator* node = nullptr,
                 const OnBytes& on_bytes = {}) const;
  /// The form of the tensors in `loaded`; other "mtp." tensors, and tensors of other parts, are carried.
  WeightFiles files(std::span<const NamedTensor> loaded) const;

 private:
  void add_frozen();
  struct Entry {
    std::map<TensorPart, StoredIn> parts;
    bool per_expert() const { return parts.begin()->first.expert >= 0; }
    bool halves() const { return parts.begin()->first.half >= 0; }
    /// The shape of each part of a tensor of this shape.
    Shape part_shape(const Shape& whole) const;
  };
  const Entry& at(std::string_view name) const;
  std::filesystem::path directory_;
  const NameTable* names_;
  std::string head_, embeddings_;  // canonical names
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<StoredIn> other_parts_;
};

/// Checks a directory against `into`, reads every tensor of `into` that is not meta, and
/// returns the form of the directory. The ranks of one node together read each byte
/// once; all ranks of the world call together.
WeightFiles load_hf_weights(const HfWeights& weights, std::span<const NamedTensor> into,
                            World* world = nullptr, const OnBytes& on_bytes = {});

/// The form for a model that did not come from files: canonical names, experts apart, one file, and a
/// config.json. The dtype follows from the config (f32 when unset), and is f32 for keep_f32
/// tensors. Tensors of multi-token prediction are included where they are trained.
WeightFiles default_weight_files(const ModelSetup& setup);
/// The files beside the weights that travel with a model: config.json, generation_config.json, tokenizer and
/// chat template files (also additional_chat_templates/NAME.jinja), remote code. A link may lead to a file in
/// the directory or, in a Hugging Face cache, to a file in its `blobs`. Links to other places are left out,
/// with a warning that names them; otherwise a downloaded model directory could make us copy private files.
/// Only config.json and tokenizer.json may be links to any place, because their contents are checked. Throws
/// Error for a FIFO, socket or device of such a name.
std::map<std::string, std::string> read_companion_files(const std::filesystem::path& directory);

/// The given tensors under their names in the files, in the same order. Stacked experts become views of each
/// expert where the files separate experts. `tensors` may be any subset of the model.
std::vector<NamedTensor> to_file_names(std::span<const NamedTensor> tensors, const WeightFiles& files);

struct SaveOptions {
  /// dtype in the files. Absent: every tensor has the dtype of the source, but f32 for f16, which is never
  /// written. bf16 leaves keep_f32 tensors in f32. config.json is changed to match.
  std::optional<DType> dtype;
  /// Most bytes of tensors in one file; 0: one file for all. Absent: the same division into files as the
  /// source.
  std::optional<std::int64_t> most_shard_bytes;
  OnBytes on_bytes = {};  ///< of the tensors
};

/// Writes a directory in the form of `files`. `tensors` are all of files.tensors, in the order in which they
/// should fill new shards. Carried tensors and other files are written unchanged. Tensors are written
/// straight from their memory, without a second copy of the model.
///
/// Crash-safe: everything is written and synced under a hidden temporary name beside `directory`, which then
/// takes its name in one step (StagingDirectory). Throws Error when `directory` exists and is not empty,
/// so nothing is ever overwritten. Returns the sum of each file, by file name.
///
/// The ranks of `group` write one directory, which all must see: all call this function with the same files,
/// options and names, and each with the elements that it holds. The `value` of a tensor then has the elements
/// of NamedTensor::shard, or is meta; every element counts on exactly one rank (NamedTensor::counts,
/// counted_elsewhere). One rank would write the same bytes. Where one rank fails, all throw
/// (parallel/comm/together.h).
FileSums save_hf_weights(const std::filesystem::path& directory, std::span<const NamedTensor> tensors,
                         const WeightFiles& files, const SaveOptions& options = {},
                         Communicator* group = nullptr);

/// The changes that a copy makes.
struct WeightChange {
  std::function<bool(std::string_view name)>
      changes;  ///< whether the copy changes the tensor of this canonical name
  /// Changes the tensor, or a part of it, in f32 (f64 for tensors stored in f64), in place.
  std::function<void(const std::string& name, const TensorPart& part, const Tensor& values)> apply;
  /// Changes the files beside the weights (WeightFiles::other_files).
  std::function<void(std::map<std::string, std::string>& files)> companions = {};
};

/// Copies the model directory `from` to `to` like save_hf_weights, a piece of a tensor at a time. Without
/// options.dtype every tensor keeps its bits (F16, which is never written, becomes F32). Tensors that
/// `change` changes are held whole, one at a time, and are rounded once.
void copy_hf_model(const std::filesystem::path& from, const std::filesystem::path& to,
                   const SaveOptions& options = {}, const WeightChange& change = {});

}  // namespace nemocube
