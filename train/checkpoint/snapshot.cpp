#include "train/checkpoint/snapshot.h"

#include <utility>

#include "core/host_wait.h"
#include "train/checkpoint/optimizer_files.h"

namespace nemocube {
namespace {

Tensor host_copy(const Tensor& value) {
  return value.device().is_host() ? value.clone() : value.to(Device::cpu);  // is written to a file
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
                     Communicator* ranks) {
  const LoraAdapters& adapters = model.model->config().lora;
  const TensorSet written = adapters.modules.empty() ? TensorSet::all : TensorSet::adapters;
  return {.weights = named_tensors(*model.model, written),
          .files = &model.files,
          .adapters = adapters,
          .base = model.base.string(),
          .settings = model.adapter_settings,
          .dtype = model.model->dtype(),
          .optimizer_state = written_state(optimizer, ranks),
          .state = state};
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
