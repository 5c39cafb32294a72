#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "model/initialise.h"
#include "model/nemotron_h.h"

namespace nemocube {

/// A model and the format of its directory, so that the model can be written in the same form.
struct LoadedModel {
  std::unique_ptr<NemotronH> model;
  WeightFiles files;
};

/// How a model is divided among ranks; empty: the model is whole.
struct Divide {
  std::function<ModelPart(const NemotronHConfig&)> part;  ///< what this rank holds
  std::function<void(NemotronH&)> install;  ///< gives the part, built on Device::meta, its memory

  explicit operator bool() const { return static_cast<bool>(install); }
};

/// Reads config.json and the weights of a Hugging Face directory, of which only what this rank owns. The dtype is
/// `dtype`, else the one in config.json, else f32. A whole model lies on `device`; of a divided one `divide` says where.
/// Errors name files and tensors.
LoadedModel load_model(const std::filesystem::path& dir, std::optional<DType> dtype, Device device,
                       const Divide& divide = {});

/// Throws Error unless the weight files in `dir` hold the tensors of a model of this config; reads headers
/// only.
void check_model_files(const std::filesystem::path& dir, const NemotronHConfig& config);

/// A model of the shape that config.json in `dir` describes, with fresh weights.
LoadedModel make_model(const std::filesystem::path& dir, std::optional<DType> dtype, std::uint64_t seed,
                       Device device, Initialisation law = Initialisation::hf, const Divide& divide = {});

/// Every tensor of the whole model under its canonical name, in canonical order: what this process owns of it (shared
/// memory), or a meta tensor where this part of the model has none of it.
std::vector<NamedTensor> named_tensors(const NemotronH& model);

}  // namespace nemocube
