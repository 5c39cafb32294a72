#include "model/parameters.h"

namespace nemocube {

ParameterStore::ParameterStore(const NemotronHConfig& config, DType dtype, Device device) {
  for (const TensorSpec& spec : tensor_specs(config)) {
    Parameter p;
    p.name = spec.name;
    p.value = Tensor::empty(spec.shape, spec.keep_f32 ? accumulate_dtype(dtype) : dtype, device);
    if (!spec.buffer) p.node = std::make_shared<GradNode>(spec.shape, p.value.dtype(), true);
    index_.emplace(p.name, parameters_.size());
    parameters_.push_back(std::move(p));
  }
}

Parameter* ParameterStore::find(std::string_view name) {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &parameters_[it->second];
}

Parameter& ParameterStore::get(std::string_view name) {
  Parameter* p = find(name);
  expect(p != nullptr, "the model has no tensor '", name, "'");
  return *p;
}

std::int64_t ParameterStore::element_count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.value.numel();
  return n;
}

std::int64_t ParameterStore::trainable_count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_)
    if (p.wants_grad()) n += p.value.numel();
  return n;
}

void ParameterStore::clear_gradients() {
  for (Parameter& p : parameters_)
    if (p.node) p.node->clear();
}

}  // namespace nemocube
