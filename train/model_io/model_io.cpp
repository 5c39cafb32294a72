#include "train/model_io/model_io.h"

#include <functional>

#include "core/log.h"
#include "core/profile.h"
#include "parallel/comm/together.h"
#include "train/logging/progress.h"
#include "train/model_io/adapter_io.h"
#include "train/model_io/base_model.h"

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

bool is_in(TensorSet set, const TensorSpec& spec) {
  return set == TensorSet::all || (set == TensorSet::adapters) == (spec.factor != LoraFactor::none);
}

/// Of fresh values, or of a directory.
void fill_adapters(NemotronH& model, const Finetuning& finetuning) {
  if (finetuning.lora.modules.empty()) return;
  if (!finetuning.adapter.empty()) {
    read_adapters(PeftDirectory(finetuning.adapter, model.config()),
                  named_tensors(model, TensorSet::adapters));
    return;
  }
  for (const TensorSpec& spec : tensor_specs(model.config()))
    if (const Parameter* p = model.parameters().find(spec.name); p && is_in(TensorSet::adapters, spec))
      initialise(*p, model.config(), finetuning.seed, Initialisation::hf);
}

NemotronHConfig config_of(const std::filesystem::path& dir, const Finetuning& finetuning) {
  NemotronHConfig config = read_hf_config(dir);
  config.train_mtp(finetuning.mtp);
  config.frozen = finetuning.frozen;
  config.lora = finetuning.lora;
  config.noise = finetuning.noise;
  return config;
}

/// Of the model in `dir`, and of the adapter that is added to it.
void check_bases(const std::filesystem::path& dir, const std::filesystem::path& adapter,
                 Communicator* ranks) {
  if (!adapter.empty()) want_base_of_adapter(adapter, dir, ranks);
  on_rank_0(ranks, [&] {
    if (const std::string fault = fault_of_frozen_base(dir); !fault.empty()) log_warning(fault);
  });
}

/// A tensor of which this process has nothing.
NamedTensor elsewhere(const TensorSpec& spec) {
  return {.name = spec.name, .value = Tensor::meta(spec.shape, DType::f32)};
}
}  // namespace

void check_model_files(const std::filesystem::path& dir, const NemotronHConfig& config) {
  std::vector<NamedTensor> wanted;
  for (const TensorSpec& spec : tensor_specs(config))
    if (is_in(TensorSet::base, spec)) wanted.push_back(elsewhere(spec));
  HfWeights(dir).check(wanted);
}

Finetuning with_adapter(const std::filesystem::path& dir, const std::filesystem::path& adapter) {
  if (adapter.empty()) return {};
  return {.lora = PeftDirectory(adapter, read_hf_config(dir)).adapters(), .adapter = adapter};
}

std::vector<NamedTensor> named_tensors(const NemotronH& model, TensorSet set) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(model.config())) {
    if (!is_in(set, spec)) continue;
    const Parameter* p = model.parameters().find(spec.name);
    tensors.push_back(p ? NamedTensor{p->name, p->own, p->shard, p->counts, p->counted_elsewhere}
                        : elsewhere(spec));
  }
  return tensors;
}

LoadedModel load_model(const std::filesystem::path& dir, std::optional<DType> dtype,
                       const ModelPlace& place) {
  const NemotronHConfig config = config_of(dir, place.finetuning);
  check_model_files(dir, config);  // first: a config of another model could ask for any amount of memory
  Communicator* const ranks = place.world ? &place.world->communicator() : nullptr;
  check_bases(dir, place.finetuning.adapter, ranks);
  LoadedModel loaded = build(config, dtype, place);
  const ZoneTimer timer(weights_zone());
  TaskProgress progress("weights", "bytes");
  loaded.files =
      load_hf_weights(dir, named_tensors(*loaded.model, TensorSet::base), place.world, std::ref(progress));
  loaded.base = std::filesystem::canonical(dir);
  if (!place.finetuning.frozen.empty()) loaded.base_record = record_of_base(loaded.base, ranks);
  fill_adapters(*loaded.model, place.finetuning);
  return loaded;
}

LoadedModel make_model(const std::filesystem::path& dir, std::optional<DType> dtype, std::uint64_t seed,
                       const ModelPlace& place, Initialisation law) {
  const NemotronHConfig config = config_of(dir, place.finetuning);
  LoadedModel made = build(config, dtype, place);
  const ZoneTimer timer(weights_zone());
  initialise(*made.model, seed, law);
  if (!place.finetuning.adapter.empty()) fill_adapters(*made.model, place.finetuning);
  made.files = default_weight_files(config);
  return made;
}

}  // namespace nemocube
