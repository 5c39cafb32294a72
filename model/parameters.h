#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/autograd.h"
#include "model/config.h"

namespace nemocube {

/// A named tensor of the model. Names are canonical (see tensor_specs). The gradient is summed over
/// microbatches in f32 (f64 for f64).
struct Parameter {
  std::string name;
  Tensor value;
  std::shared_ptr<GradNode> node;  ///< null for buffers, which have no gradient
  bool trainable = true;

  bool wants_grad() const { return node && trainable; }
  Var var() const { return wants_grad() ? Var(value, node) : Var(value); }
};

/// All tensors of a model in canonical order. Loading, saving, optimizers and checkpoints all use this
/// inventory.
class ParameterStore {
 public:
  /// Allocates every tensor of tensor_specs(config), uninitialised, in `dtype`; those marked keep_f32 in f32
  /// (f64 when dtype is f64). Device::meta allocates nothing.
  ParameterStore(const NemotronHConfig& config, DType dtype, Device device = Device::cpu);

  /// Throws std::logic_error when there is no such name, since all names come from tensor_specs.
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
