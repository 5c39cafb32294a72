#pragma once
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/autograd.h"
#include "core/shard.h"
#include "model/config.h"

namespace nemocube {

/// A named tensor of the model, or the part of it that this process computes with. The gradient is summed
/// over microbatches in f32 (f64 for f64).
struct Parameter {
  TensorName id;
  std::string name;                ///< the text of `id` (TensorSpec::name)
  std::int64_t number = 0;         ///< among all tensors of the whole model, in the order of tensor_specs()
  std::optional<InitialLaw> law;   ///< of fresh values; a parameter of a model has one
  Tensor value;                    ///< what the blocks compute with
  std::shared_ptr<GradNode> node;  ///< null for buffers, which have no gradient
  bool trainable = true;

  /// The part that this process initialises, loads, updates and saves: `value` itself, or, where data
  /// parallelism shards it, a flat range of its elements [n].
  Tensor own;
  Shard shard;         ///< of the global tensor: where the elements of `own` lie in it
  bool counts = true;  ///< norms and checkpoints take the elements of `own` from this process
  /// Elements of `own` that norms and checkpoints take from another process, ascending; usually empty.
  std::vector<Range> counted_elsewhere;
  /// The gradient of `own`, where that is not the gradient of `value`; see gradient().
  Tensor own_gradient;

  bool wants_grad() const { return node && trainable; }
  Var var() const { return wants_grad() ? Var(value, node) : Var(value); }
  /// Sum of the gradient of `own` so far, all zeros when nothing contributed. pre: wants_grad()
  Tensor gradient() const;
  /// The parts of gradient() that norms take from this process. pre: wants_grad()
  std::vector<Tensor> counted_gradient() const;
};

/// Consecutive blocks of a model, run in one go. The default is the whole model.
struct ModelChunk {
  std::int64_t first_block = 0;
  std::int64_t end_block = std::numeric_limits<std::int64_t>::max();  ///< at most the number of blocks
  bool embeddings = true;
  bool head = true;  ///< the final norm and lm_head

  bool has_block(std::int64_t block) const { return block >= first_block && block < end_block; }
  bool operator==(const ModelChunk&) const = default;
};

/// The part of a model that a process holds. The default is the whole model.
struct ModelPart {
  std::vector<ModelChunk> chunks{ModelChunk{}};  ///< ascending and disjoint
  /// Where a tensor is cut; absent: nowhere.
  std::function<Shard(const TensorSpec&)> shard = {};
  /// The chunk with the head has the embeddings, too: a tied head has their weight, and multi-token
  /// prediction embeds tokens there.
  bool embeddings_at_head = false;

  bool embeddings() const;  ///< whether the part has the embeddings
  bool head() const;
  bool has(const TensorName& name) const;  ///< whether the part has the tensor
};

/// All tensors of a model in canonical order. Loading, saving, optimizers and checkpoints all use this
/// inventory.
class ParameterStore {
 public:
  /// Allocates the local part of every tensor of tensor_specs(setup) that `part` has, uninitialised, in
  /// `dtype`; tensors marked keep_f32 in f32 (f64 when dtype is f64). Device::meta allocates nothing.
  ParameterStore(const ModelSetup& setup, DType dtype, Device device, const ModelPart& part = {});

  /// Throws std::logic_error for a name that the store does not have: all names come from tensor_specs().
  Parameter& get(const TensorName& name);
  Parameter* find(const TensorName& name);  ///< null when there is none
  const Parameter* find(const TensorName& name) const;
  /// The same by the text of a name, for names from files (TensorSpec::name).
  Parameter& get(std::string_view text);
  Parameter* find(std::string_view text);
  const Parameter* find(std::string_view text) const;
  std::vector<Parameter>& all() { return parameters_; }
  const std::vector<Parameter>& all() const { return parameters_; }
  Device device() const;                 ///< of the values
  std::int64_t element_count() const;    ///< of the global tensors
  std::int64_t trainable_count() const;  ///< of the global tensors that want gradients
  void clear_gradients();

 private:
  std::vector<Parameter> parameters_;
  ModelNames names_;
  std::map<TensorName, std::size_t> index_;
  std::unordered_map<std::string, std::size_t> by_text_;
};

}  // namespace nemocube
