#include "train/checkpoint/restore.h"

#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "data/hf/hf_weights.h"
#include "parallel/comm/together.h"
#include "train/checkpoint/optimizer_files.h"
#include "train/logging/progress.h"
#include "train/model_io/model_io.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view master_prefix = "master.";

/// What a rank takes from the files of the optimizer, and what from those of the weights.
struct Wanted {
  std::vector<StateTensor> state;
  std::vector<NamedTensor> masters;  // that are the weights of the checkpoint; meta where this is not so
};

Wanted wanted_of(const StoredOptimizer& stored, const NemotronH& model, const Optimizer& optimizer) {
  Wanted wanted;
  std::map<std::string, StateTensor> from_weights;
  for (StateTensor& t : optimizer.state()) {
    const bool weight = t.name.starts_with(master_prefix) && !stored.has(t.name);
    if (weight) from_weights.emplace(t.name.substr(master_prefix.size()), t);
    if (weight || (t.value.numel() == 0 && !t.shard.whole())) continue;
    wanted.state.push_back(std::move(t));
  }
  for (const NamedTensor& t : named_tensors(model)) {
    const auto found = from_weights.find(t.name);
    if (found == from_weights.end())
      wanted.masters.push_back({t.name, Tensor::meta(t.global_shape(), DType::f32)});
    else
      wanted.masters.push_back({t.name, found->second.value, found->second.shard});
  }
  // Weights that are their own masters now were rounded copies of masters in the checkpoint.
  for (const Parameter& p : model.parameters().all())
    if (p.wants_grad() && p.own.dtype() != DType::bf16)
      if (const std::string name = std::string(master_prefix) + p.name; stored.has(name))
        wanted.state.push_back({name, p.own, p.shard});
  return wanted;
}

}  // namespace

void restore_tensors(const fs::path& checkpoint, NemotronH& model, Optimizer& optimizer,
                     const CheckpointSection& section, World* world) {
  const bool with_optimizer = section.load_optim && !section.finetune;
  Communicator* const ranks = world ? &world->communicator() : nullptr;
  Communicator* const node = world ? world->node_group() : nullptr;
  std::optional<HfWeights> weights;
  std::optional<StoredOptimizer> stored;
  const std::vector<NamedTensor> own = named_tensors(model);
  together(ranks, [&] {
    weights.emplace(checkpoint / "model");
    weights->check(own);
    if (with_optimizer) stored.emplace(checkpoint / "optim");
  });
  together(ranks, [&] {
    TaskProgress progress("weights of the checkpoint", "bytes");
    weights->read(own, node, std::ref(progress));
  });
  if (!with_optimizer) return optimizer.take_weights();
  const Wanted wanted = wanted_of(*stored, model, optimizer);
  stored->check(wanted.state, section.strictness, ranks);
  together(ranks, [&] { weights->read(wanted.masters, node); });
  together(ranks, [&] {
    TaskProgress progress("optimizer of the checkpoint", "bytes");
    stored->read(wanted.state, node, std::ref(progress));
  });
}

}  // namespace nemocube
