#include "train/model_io/model_io.h"

#include "model/initialise.h"

namespace nemocube {
namespace {
std::unique_ptr<NemotronH> build(const NemotronHConfig& config, std::optional<DType> dtype) {
  return std::make_unique<NemotronH>(config, dtype.value_or(config.dtype.value_or(DType::f32)));
}
}  // namespace

std::vector<NamedTensor> named_tensors(const NemotronH& model) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& p : model.parameters().all()) tensors.push_back({p.name, p.value});
  return tensors;
}

LoadedModel load_model(const std::filesystem::path& dir, std::optional<DType> dtype) {
  LoadedModel loaded;
  loaded.model = build(read_hf_config(dir), dtype);
  loaded.files = load_hf_weights(dir, named_tensors(*loaded.model));
  return loaded;
}

LoadedModel make_model(const std::filesystem::path& dir, std::optional<DType> dtype, std::uint64_t seed) {
  LoadedModel made;
  const NemotronHConfig config = read_hf_config(dir);
  made.model = build(config, dtype);
  initialise(*made.model, seed);
  made.files = default_weight_files(config);
  return made;
}

}  // namespace nemocube
