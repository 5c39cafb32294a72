#include "train/checkpoint/snapshot.h"

#include <set>
#include <string>
#include <utility>

#include "core/host_wait.h"
#include "data/hf/frozen_weights.h"
#include "train/checkpoint/optimizer_files.h"

namespace nemocube {
namespace {

Tensor host_copy(const Tensor& value) {
  return value.device().is_host() ? value.clone() : value.to(Device::cpu);  // is written to a file
}

void leave_out_frozen(Snapshot& snapshot, const LoadedModel& model) {
  std::set<std::string, std::less<>> frozen;
  for (const TensorName& name : model.model->choices().frozen)
    frozen.insert(model.model->config().text(name));
  if (frozen.empty()) return;
  expect(!model.base.empty(), "frozen weights without a directory cannot be left out");
  WeightFiles files = model.files;
  std::erase_if(files.tensors, [&](const auto& entry) { return frozen.contains(entry.first); });
  std::erase_if(snapshot.weights, [&](const NamedTensor& t) { return frozen.contains(t.name); });
  files.other_files[FrozenWeights::file_name] = to_json_text({model.base, frozen, model.base_record});
  snapshot.files = std::make_shared<const WeightFiles>(std::move(files));
}

}  // namespace

std::int64_t Snapshot::bytes() const {
  std::int64_t sum = 0;
  for (const NamedTensor& t : weights)
    if (!t.value.is_meta()) sum += t.value.bytes();
  for (const StateTensor& t : optimizer_state) sum += t.value.bytes();
  return sum;
}

Snapshot snapshot_of(const LoadedModel& model, const Optimizer& optimizer, const RunState& state,
                     Communicator* ranks, bool with_frozen) {
  const LoraAdapters& adapters = model.model->choices().lora;
  const TensorSet written = adapters.modules.empty() ? TensorSet::all : TensorSet::adapters;
  Snapshot snapshot{.weights = named_tensors(*model.model, written),
                    .files = std::shared_ptr<const WeightFiles>(std::shared_ptr<void>(), &model.files),
                    .adapters = adapters,
                    .names = model.model->config().names,
                    .base = model.base.string(),
                    .settings = model.adapter_settings,
                    .base_record = model.base_record,
                    .dtype = model.model->dtype(),
                    .optimizer_state = written_state(optimizer, ranks),
                    .state = state};
  if (written == TensorSet::all && !with_frozen) leave_out_frozen(snapshot, model);
  return snapshot;
}

Snapshot copy_of(Snapshot snapshot) {
  const HostWaitName name("snapshot");
  for (NamedTensor& t : snapshot.weights)
    if (!t.value.is_meta())
      t.value = t.counts ? host_copy(t.value) : Tensor::meta(t.value.shape(), t.value.dtype());
  for (StateTensor& t : snapshot.optimizer_state) t.value = host_copy(t.value);
  return snapshot;
}

}  // namespace nemocube
