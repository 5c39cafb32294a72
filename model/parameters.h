#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/autograd.h"
#include "model/config.h"

namespace nemocube {

/// A named tensor of the model. Names are canonical (TensorSpec); the gradient sums over microbatches in f32
/// (f64).
struct Parameter {
  std::string name;
  Tensor value;
  std::shared_ptr<GradNode> node;  ///< null for buffers, which no gradient ever reaches
  bool trainable = true;

  bool wants_grad() const { return node && trainable; }
  Var var() const { return wants_grad() ? Var(value, node) : Var(value); }
};

/// All tensors of a model in canonical order: its one inventory, for loading, saving, optimizers and
/// checkpoints.
class ParameterStore {
 public:
  /// Allocates every tensor of tensor_specs(config), uninitialised, in `dtype`; those marked keep_f32 in f32
  /// (f64 when dtype is f64). Device::meta allocates nothing.
  ParameterStore(const NemotronHConfig& config, DType dtype, Device device = Device::cpu);

  /// std::logic_error when there is no such name: shapes and names have one source, tensor_specs.
  Parameter& get(std::string_view name);
  Parameter* find(std::string_view name);  ///< null when there is none
  std::vector<Parameter>& all() { return parameters_; }
  const std::vector<Parameter>& all() const { return parameters_; }
  std::int64_t element_count() const;
  std::int64_t trainable_count() const;  ///< elements of the parameters that want gradients
  void clear_gradients();

 private:
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace nemocube
