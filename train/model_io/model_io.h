#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/hf/model_record.h"
#include "model/initialise.h"
#include "model/stack.h"
#include "parallel/parallel_model/parallel_model.h"
#include "train/model_io/opened_model.h"

namespace nemocube {

/// A model, or this rank's part of it, and the format of its directory, so that the model can be written in
/// the same form.
struct LoadedModel {
  std::unique_ptr<ProcessGroups> groups;    ///< that `parallel` uses
  std::unique_ptr<Stack> model;             ///< null on a rank of the world outside of the plan's grid
  std::unique_ptr<ParallelModel> parallel;  ///< the same model, with its plan installed
  WeightFiles files;
  std::filesystem::path base =
      {};  ///< source of all weights but adapters, links followed; empty: fresh weights
  std::optional<ModelRecord> base_record = {};  ///< of `base`, where a run trains a part of the model
  std::string adapter_settings = {};  ///< automodel_peft_config.json beside the adapters; empty: none
};

/// The choices of a run for a model, and the source of its adapters.
struct Finetuning {
  ModelChoices choices = {};
  std::filesystem::path adapter = {};  ///< directory to read the adapters from; empty: fresh ones
  std::uint64_t seed = 0;              ///< of fresh adapters
};

/// Where a model lies: alone on a device, or divided among ranks of a world, which form the plan's grid.
struct Residence {
  Residence(Device where) : device(where) {}  // NOLINT(google-explicit-constructor): a device is a place
  Residence(Device where, World& ranks, ParallelPlan how)
      : device(where), world(&ranks), plan(std::move(how)) {}
  Device device;
  World* world = nullptr;  ///< null: one rank
  ParallelPlan plan;
};

/// The model of the source with the choices of the run. Of multi-token
/// prediction it has only the trained depths.
ModelSetup setup_of(const OpenedModel& source, const ModelChoices& choices);

/// Reads this rank's own parts of the weights of a Hugging Face directory. The dtype is `dtype`, else the one
/// in config.json, else f32. All ranks of the world call together, also ranks outside of the plan's grid, and
/// make the groups that the plan uses. Errors name files and tensors. Adapters are read or drawn as
/// `finetuning` says. An adapter that was trained on another model is refused, and a warning tells where
/// weights that the directory leaves elsewhere have changed (train/model_io/base_model.h).
LoadedModel load_model(const OpenedModel& source, std::optional<DType> dtype, const Residence& place,
                       const Finetuning& finetuning = {});

/// Throws Error unless the weight files hold the tensors of the model, adapters aside; reads headers only.
void check_model_files(const HfWeights& weights, const ModelSetup& setup);

/// A model of the shape that config.json of the source describes, with fresh weights.
LoadedModel make_model(const OpenedModel& source, std::optional<DType> dtype, std::uint64_t seed,
                       const Residence& place, Initialisation law = Initialisation::hf,
                       const Finetuning& finetuning = {});

/// For computing with the adapter in the directory `adapter` (empty: none) on the model of the source.
Finetuning with_adapter(const OpenedModel& source, const std::filesystem::path& adapter);

enum class TensorSet : std::uint8_t { all, base, adapters };
/// Every tensor of the whole model, or only adapters, or all but adapters, under its canonical
/// name, in canonical order: this process's own part of it (shared memory), or a meta tensor where
/// this part of the model does not have it.
std::vector<NamedTensor> named_tensors(const Stack& model, TensorSet set = TensorSet::all);

}  // namespace nemocube
