#include "model/parameters.h"

#include <algorithm>
#include <charconv>
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

std::optional<std::int64_t> block_of(std::string_view name) {
  constexpr std::string_view layers = "backbone.layers.";
  if (!name.starts_with(layers)) return std::nullopt;
  std::int64_t block = -1;
  const std::string_view rest = name.substr(layers.size());
  std::from_chars(rest.data(), rest.data() + rest.size(), block);
  return block;
}

bool ModelPart::embeddings() const {
  return std::ranges::any_of(chunks, &ModelChunk::embeddings) || (embeddings_at_head && head());
}
bool ModelPart::head() const { return std::ranges::any_of(chunks, &ModelChunk::head); }

bool ModelPart::has(std::string_view name) const {
  if (const auto block = block_of(name))
    return std::ranges::any_of(chunks, [&](const ModelChunk& c) { return c.has_block(*block); });
  return name.starts_with("backbone.embeddings.") ? embeddings() : head();
}

ParameterStore::ParameterStore(const NemotronHConfig& config, DType dtype, Device device,
                               const ModelPart& part) {
  const AllocationOwner owner("weights");
  std::int64_t number = 0;
  for (const TensorSpec& spec : tensor_specs(config)) {
    ++number;
    if (!part.has(spec.name)) continue;
    Parameter p;
    p.name = spec.name;
    p.number = number - 1;
    p.law = spec.law;
    p.trainable = !spec.frozen;
    p.shard = part.shard ? part.shard(spec) : Shard(spec.shape);
    p.value = Tensor::empty(p.shard.shape(), spec.keep_f32 ? accumulate_dtype(dtype) : dtype, device);
    p.own = p.value;
    if (!spec.buffer)
      p.node = std::make_shared<GradNode>(p.value.shape(), p.value.dtype(), p.value.device(), true);
    index_.emplace(p.name, parameters_.size());
    parameters_.push_back(std::move(p));
  }
}

const Parameter* ParameterStore::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &parameters_[it->second];
}

Parameter* ParameterStore::find(std::string_view name) {
  return const_cast<Parameter*>(std::as_const(*this).find(name));
}

Parameter& ParameterStore::get(std::string_view name) {
  Parameter* p = find(name);
  expect(p != nullptr, "the model has no tensor '", name, "'");
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
