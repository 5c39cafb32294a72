#include "train/model_io/model_io.h"

#include <functional>

#include "core/profile.h"
#include "train/logging/progress.h"

namespace nemocube {
namespace {
Zone& weights_zone() {
  static Zone zone("start/weights");
  return zone;
}

/// Without weights.
LoadedModel build(const NemotronHConfig& config, std::optional<DType> dtype, const ModelPlace& place) {
  const DType stored = dtype.value_or(config.dtype.value_or(DType::f32));
  LoadedModel built;
  if (!place.world) {
    built.model = std::make_unique<NemotronH>(config, stored, place.device);
    built.parallel = std::make_unique<ParallelModel>(*built.model);
    return built;
  }
  const ParallelPlan& plan = place.plan;
  built.groups =
      std::make_unique<ProcessGroups>(*place.world, make_grid(plan.grid), used_groups(plan, config));
  // On several ranks `parallel` gives the parameters their memory.
  const Device device = place.world->size() > 1 ? Device::meta : place.device;
  built.model = std::make_unique<NemotronH>(config, stored, device,
                                            part_of(plan, config, place_of(plan.grid, place.world->rank())));
  built.parallel = std::make_unique<ParallelModel>(*built.model, plan, *built.groups, place.device);
  return built;
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

LoadedModel load_model(const std::filesystem::path& dir, std::optional<DType> dtype,
                       const ModelPlace& place) {
  NemotronHConfig config = read_hf_config(dir);
  config.frozen = place.frozen;
  check_model_files(dir, config);  // first: a config of another model could ask for any amount of memory
  LoadedModel loaded = build(config, dtype, place);
  const ZoneTimer timer(weights_zone());
  TaskProgress progress("weights", "bytes");
  loaded.files = load_hf_weights(dir, named_tensors(*loaded.model), place.world, std::ref(progress));
  return loaded;
}

LoadedModel make_model(const std::filesystem::path& dir, std::optional<DType> dtype, std::uint64_t seed,
                       const ModelPlace& place, Initialisation law) {
  NemotronHConfig config = read_hf_config(dir);
  config.frozen = place.frozen;
  LoadedModel made = build(config, dtype, place);
  const ZoneTimer timer(weights_zone());
  initialise(*made.model, seed, law);
  made.files = default_weight_files(config);
  return made;
}

}  // namespace nemocube
