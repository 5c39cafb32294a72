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

/// Without weights; and without a model on a rank that is not in the grid of the plan.
LoadedModel build(const ModelSetup& setup, std::optional<DType> dtype, const Residence& place) {
  const DType stored = dtype.value_or(setup.config.dtype.value_or(DType::f32));
  LoadedModel built;
  if (!place.world) {
    built.model = std::make_unique<Stack>(setup, stored, place.device);
    built.parallel = std::make_unique<ParallelModel>(*built.model);
    return built;
  }
  const ParallelPlan& plan = place.plan;
  const HypercubeGrid grid = make_grid(plan.grid);
  built.groups = std::make_unique<ProcessGroups>(*place.world, grid, used_groups(plan, setup));
  if (!grid.contains(place.world->rank())) return built;
  // On several ranks `parallel` gives the parameters their memory.
  const Device device = place.world->size() > 1 ? Device::meta : place.device;
  built.model = std::make_unique<Stack>(setup, stored, device,
                                        part_of(plan, setup, place_of(plan.grid, place.world->rank())));
  built.parallel = std::make_unique<ParallelModel>(*built.model, plan, *built.groups, place.device);
  return built;
}

bool is_in(TensorSet set, const TensorSpec& spec) {
  return set == TensorSet::all || (set == TensorSet::adapters) == (spec.factor != LoraFactor::none);
}

/// A tensor of which this process has nothing.
NamedTensor elsewhere(const TensorSpec& spec) {
  return {.name = spec.name, .value = Tensor::meta(spec.shape, DType::f32), .keep_f32 = spec.keep_f32};
}

/// The tensors of the model, adapters aside, none of which are here.
std::vector<NamedTensor> base_elsewhere(const ModelSetup& setup) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(setup))
    if (is_in(TensorSet::base, spec)) tensors.push_back(elsewhere(spec));
  return tensors;
}

/// Of fresh values, or of a directory.
void fill_adapters(Stack& model, const Finetuning& finetuning) {
  if (model.choices().lora.modules.empty()) return;
  if (!finetuning.adapter.empty()) {
    read_adapters(PeftDirectory(finetuning.adapter, model.setup()),
                  named_tensors(model, TensorSet::adapters));
    return;
  }
  for (const TensorSpec& spec : tensor_specs(model.setup()))
    if (const Parameter* p = model.parameters().find(spec.id); p && is_in(TensorSet::adapters, spec))
      initialise(*p, model.config(), finetuning.seed, Initialisation::hf);
}

/// Of the model in `dir`, and of the adapter that is added to it.
void check_bases(const std::filesystem::path& dir, const std::filesystem::path& adapter,
                 Communicator* ranks) {
  if (!adapter.empty()) want_base_of_adapter(adapter, dir, ranks);
  on_rank_0(ranks, [&] {
    if (const std::string fault = fault_of_frozen_base(dir); !fault.empty()) log_warning(fault);
  });
}

}  // namespace

ModelSetup setup_of(const OpenedModel& source, const ModelChoices& choices) {
  ModelSetup setup(source.config(), choices);
  setup.train_mtp(choices.mtp);
  return setup;
}

void check_model_files(const HfWeights& weights, const ModelSetup& setup) {
  weights.check(base_elsewhere(setup));
}

Finetuning with_adapter(const OpenedModel& source, const std::filesystem::path& adapter) {
  if (adapter.empty()) return {};
  Finetuning finetuning;
  finetuning.choices.lora = PeftDirectory(adapter, ModelSetup(source.config())).adapters();
  finetuning.adapter = adapter;
  return finetuning;
}

std::vector<NamedTensor> named_tensors(const Stack& model, TensorSet set) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(model.setup())) {
    if (!is_in(set, spec)) continue;
    const Parameter* p = model.parameters().find(spec.id);
    tensors.push_back(
        p ? NamedTensor{p->name, p->own, p->shard, p->counts, p->counted_elsewhere, spec.keep_f32}
          : elsewhere(spec));
  }
  return tensors;
}

LoadedModel load_model(const OpenedModel& source, std::optional<DType> dtype, const Residence& place,
                       const Finetuning& finetuning) {
  const ModelSetup setup = setup_of(source, finetuning.choices);
  // First: a config of another model could ask for any amount of memory.
  check_model_files(source.weights(), setup);
  Communicator* const ranks = place.world ? &place.world->communicator() : nullptr;
  check_bases(source.directory(), finetuning.adapter, ranks);
  LoadedModel loaded = build(setup, dtype, place);
  const ZoneTimer timer(weights_zone());
  TaskProgress progress("weights", "bytes");
  const auto into = loaded.model ? named_tensors(*loaded.model, TensorSet::base) : base_elsewhere(setup);
  loaded.files = load_hf_weights(source.weights(), into, place.world, std::ref(progress));
  loaded.base = std::filesystem::canonical(source.directory());
  if (!setup.choices.frozen.empty()) loaded.base_record = record_of_base(loaded.base, ranks);
  if (loaded.model) fill_adapters(*loaded.model, finetuning);
  return loaded;
}

LoadedModel make_model(const OpenedModel& source, std::optional<DType> dtype, std::uint64_t seed,
                       const Residence& place, Initialisation law, const Finetuning& finetuning) {
  const ModelSetup setup = setup_of(source, finetuning.choices);
  LoadedModel made = build(setup, dtype, place);
  if (!made.model) return made;
  const ZoneTimer timer(weights_zone());
  initialise(*made.model, seed, law);
  if (!finetuning.adapter.empty()) fill_adapters(*made.model, finetuning);
  made.files = default_weight_files(setup);
  return made;
}

}  // namespace nemocube
