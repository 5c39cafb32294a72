#include "train/model_io/model_io.h"

namespace nemocube {
namespace {
std::unique_ptr<NemotronH> build(const NemotronHConfig& config, std::optional<DType> dtype, Device device,
                                 const Divide& divide) {
  const DType stored = dtype.value_or(config.dtype.value_or(DType::f32));
  if (!divide) return std::make_unique<NemotronH>(config, stored, device);
  auto model = std::make_unique<NemotronH>(config, stored, Device::meta, divide.part(config));
  divide.install(*model);
  return model;
}

/// A tensor of which this process has nothing.
NamedTensor elsewhere(const TensorSpec& spec) {
  return {.name = spec.name, .value = Tensor::meta(spec.shape, DType::f32)};
}
}  // namespace

void check_model_files(const std::filesystem::path& dir, const NemotronHConfig& config) {
  std::vector<NamedTensor> wanted;
  for (const TensorSpec& spec : tensor_specs(config)) wanted.push_back(elsewhere(spec));
  HfWeights(dir).check(wanted);
}

std::vector<NamedTensor> named_tensors(const NemotronH& model) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(model.config())) {
    const Parameter* p = model.parameters().find(spec.name);
    tensors.push_back(p ? NamedTensor{p->name, p->own, p->shard, p->counts, p->counted_elsewhere}
                        : elsewhere(spec));
  }
  return tensors;
}

LoadedModel load_model(const std::filesystem::path& dir, std::optional<DType> dtype, Device device,
                       const Divide& divide) {
  LoadedModel loaded;
  const NemotronHConfig config = read_hf_config(dir);
  check_model_files(dir, config);  // first: a config of another model could ask for any amount of memory
  loaded.model = build(config, dtype, device, divide);
  loaded.files = load_hf_weights(dir, named_tensors(*loaded.model));
  return loaded;
}

LoadedModel make_model(const std::filesystem::path& dir, std::optional<DType> dtype, std::uint64_t seed,
                       Device device, Initialisation law, const Divide& divide) {
  LoadedModel made;
  const NemotronHConfig config = read_hf_config(dir);
  made.model = build(config, dtype, device, divide);
  initialise(*made.model, seed, law);
  made.files = default_weight_files(config);
  return made;
}

}  // namespace nemocube
