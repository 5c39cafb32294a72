#include "train/checkpoint/restore.h"

#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "data/hf/hf_weights.h"
#include "data/peft/peft_directory.h"
#include "parallel/comm/together.h"
#include "train/checkpoint/optimizer_files.h"
#include "train/logging/progress.h"
#include "train/model_io/adapter_io.h"
#include "train/model_io/model_io.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view master_prefix = "master.";

/// What checkpoints of a run hold of its model.
TensorSet saved_tensors(const Stack& model) {
  return model.choices().lora.modules.empty() ? TensorSet::all : TensorSet::adapters;
}

/// The weights of a checkpoint: a model, or its adapters.
class StoredWeights {
 public:
  StoredWeights(const fs::path& directory, const ModelSetup& setup) {
    const LoraAdapters& lora = setup.choices.lora;
    const bool adapters = fs::exists(directory / peft_config_name), wanted = !lora.modules.empty();
    require(adapters == wanted, directory.string(), ": holds ",
            adapters ? "adapters" : "the weights of a model", ", and this run trains ",
            wanted ? "adapters (section peft)" : "the weights of a model",
            wanted ? "; name a model to adapt in model.pretrained_model_name_or_path"
                   : "; to begin with adapters, add the section peft with adapter_path");
    if (!adapters) {
      model_.emplace(directory);
      return;
    }
    adapters_.emplace(directory, setup);
    require(adapters_->adapters().modules == lora.modules, directory.string(),
            ": holds adapters of other modules, ranks or scales than the section peft asks for: ",
            first_difference(adapters_->adapters().modules, lora.modules, setup.config.names));
  }
  void check(std::span<const NamedTensor> wanted) const {
    if (model_) model_->check(wanted);
  }
  void read(std::span<const NamedTensor> into, Communicator* node, const OnBytes& on_bytes = {}) const {
    if (model_)
      model_->read(into, node, on_bytes);
    else
      read_adapters(*adapters_, into);
  }

 private:
  using Modules = std::map<TensorName, LoraModule>;
  static std::string first_difference(const Modules& stored, const Modules& wanted, const ModelNames& names) {
    for (const auto& [name, module] : wanted)
      if (const auto found = stored.find(name); found == stored.end())
        return cat("it has none of ", names.text(name));
      else if (found->second != module)
        return cat(names.text(name), " has rank ", found->second.rank, " and scale ", found->second.scale(),
                   ", want ", module.rank, " and ", module.scale());
    for (const auto& [name, module] : stored)
      if (!wanted.contains(name)) return cat("it has one of ", names.text(name));
    return "nothing";
  }
  std::optional<HfWeights> model_;
  std::optional<PeftDirectory> adapters_;
};

/// What a rank takes from the files of the optimizer, and what from those of the weights.
struct Wanted {
  std::vector<StateTensor> state;
  std::vector<NamedTensor> masters;  // that are the weights of the checkpoint; meta where this is not so
};

Wanted wanted_of(const StoredOptimizer& stored, const Stack& model, const Optimizer& optimizer) {
  Wanted wanted;
  std::map<std::string, StateTensor> from_weights;
  for (StateTensor& t : optimizer.state()) {
    const bool weight = t.name.starts_with(master_prefix) && !stored.has(t.name);
    if (weight) from_weights.emplace(t.name.substr(master_prefix.size()), t);
    if (weight || (t.value.numel() == 0 && !t.shard.whole())) continue;
    wanted.state.push_back(std::move(t));
  }
  for (const NamedTensor& t : named_tensors(model, saved_tensors(model))) {
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

void restore_tensors(const fs::path& checkpoint, Stack& model, Optimizer& optimizer,
                     const CheckpointSection& section, World* world) {
  const bool with_optimizer = section.load_optim && !section.finetune;
  Communicator* const ranks = world ? &world->communicator() : nullptr;
  Communicator* const node = world ? world->node_group() : nullptr;
  std::optional<StoredWeights> weights;
  std::optional<StoredOptimizer> stored;
  const std::vector<NamedTensor> own = named_tensors(model, saved_tensors(model));
  together(ranks, [&] {
    weights.emplace(checkpoint / "model", model.setup());
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
