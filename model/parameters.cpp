#include "model/parameters.h"

#include <algorithm>
#include <utility>

#include "core/allocation_owner.h"

namespace nemocube {

Tensor Parameter::gradient() const {
  if (own_gradient) return own_gradient;
  if (!node->filled()) node->into().to.zero();
  return node->grad();
}

std::vector<Tensor> Parameter::counted_gradient() const {
  if (!counts) return {};
  const Tensor whole = gradient();
  if (counted_elsewhere.empty()) return {whole};
  const Tensor elements = whole.reshape({-1});
  std::vector<Tensor> parts;
  std::int64_t at = 0;
  for (const Range& range : counted_elsewhere) {
    parts.push_back(elements.narrow(0, at, range.begin - at));
    at = range.end;
  }
  parts.push_back(elements.narrow(0, at, elements.numel() - at));
  return parts;
}

bool ModelPart::embeddings() const {
  return std::ranges::any_of(chunks, &ModelChunk::embeddings) || (embeddings_at_head && head());
}
bool ModelPart::head() const { return std::ranges::any_of(chunks, &ModelChunk::head); }

bool ModelPart::has(const TensorName& name) const {
  if (const auto block = name.block_of_model())
    return std::ranges::any_of(chunks, [&](const ModelChunk& c) { return c.has_block(*block); });
  if (name.part != NamePart::front) return head();
  // Where the head has a copy of the embeddings, no other part of the front is there.
  return name.module() == embeddings_name() ? embeddings()
                                            : std::ranges::any_of(chunks, &ModelChunk::embeddings);
}

ParameterStore::ParameterStore(const ModelSetup& setup, DType dtype, Device device, const ModelPart& part)
    : names_(setup.config.names) {
  const AllocationOwner owner("weights");
  std::int64_t number = 0;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    ++number;
    if (!part.has(spec.id)) continue;
    Parameter p;
    p.id = spec.id;
    p.name = spec.name;
    p.number = number - 1;
    p.law = spec.law;
    p.trainable = !spec.frozen;
    p.shard = part.shard ? part.shard(spec) : Shard(spec.shape);
    p.value = Tensor::empty(p.shard.shape(), spec.keep_f32 ? accumulate_dtype(dtype) : dtype, device);
    p.own = p.value;
    if (!spec.buffer)
      p.node = std::make_shared<GradNode>(p.value.shape(), p.value.dtype(), p.value.device(), true);
    index_.emplace(p.id, parameters_.size());
    by_text_.emplace(p.name, parameters_.size());
    parameters_.push_back(std::move(p));
  }
}

const Parameter* ParameterStore::find(const TensorName& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &parameters_[it->second];
}

const Parameter* ParameterStore::find(std::string_view text) const {
  const auto it = by_text_.find(std::string(text));
  return it == by_text_.end() ? nullptr : &parameters_[it->second];
}

Parameter* ParameterStore::find(const TensorName& name) {
  return const_cast<Parameter*>(std::as_const(*this).find(name));
}

Parameter* ParameterStore::find(std::string_view text) {
  return const_cast<Parameter*>(std::as_const(*this).find(text));
}

Parameter& ParameterStore::get(const TensorName& name) {
  Parameter* p = find(name);
  expect(p != nullptr, "the model has no tensor '", names_.text(name), "'");
  return *p;
}

Parameter& ParameterStore::get(std::string_view text) {
  Parameter* p = find(text);
  expect(p != nullptr, "the model has no tensor '", text, "'");
  return *p;
}

Device ParameterStore::device() const {
  expect(!parameters_.empty(), "the device of a model without tensors");
  return parameters_.front().value.device();
}

std::int64_t ParameterStore::element_count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.shard.global_shape().numel();
  return n;
}

std::int64_t ParameterStore::trainable_count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_)
    if (p.wants_grad()) n += p.shard.global_shape().numel();
  return n;
}

void ParameterStore::clear_gradients() {
  for (Parameter& p : parameters_)
    if (p.node) p.node->clear();
}

}  // namespace nemocube
