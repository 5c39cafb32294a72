#pragma once
#include <compare>
#include <cstdint>
#include <set>

#include "model/lora.h"
#include "model/tensor_name.h"

/// The choices of a run for a model, beside the model's config. config.json has no such keys.
namespace nemocube {

/// How a run trains multi-token prediction (docs/mtp.md).
struct MtpTraining {
  /// How many depths are predicted and trained. 0: none; their tensors in files are carried unchanged.
  std::int64_t depths = 0;
  bool repeated = false;        ///< the depths share the weights of one, applied once for each depth
  double scaling_factor = 0.1;  ///< beta of the total loss: L + beta / depths * sum_k L_k

  std::int64_t stored_depths() const { return repeated && depths > 0 ? 1 : depths; }  ///< that own weights
  auto operator<=>(const MtpTraining&) const = default;
};

/// How a run adds noise to the output of the embeddings in training (NEFTune, docs/recipe.md).
///
/// The noise is uniform in +-alpha / sqrt(S H), with S tokens in a padded row (Sequences::padded_length) and
/// hidden size H.
struct NoiseTraining {
  double alpha = 0;  ///< 0: no noise
  std::uint64_t seed = 0;
  bool operator==(const NoiseTraining&) const = default;
};

/// How a run trains a model that denoises its text (docs/block_diffusion.md).
enum class Paradigm {
  autoregressive,  ///< rows see the rows before them
  bidirectional,   ///< rows see all rows of their sequence
  block_diff,      ///< sequences 2n and 2n + 1 are the noised and the clean half of a text
};
struct DiffusionTraining {
  Paradigm paradigm = Paradigm::autoregressive;
  std::int64_t block_size = 0;  ///< block_diff: rows of a block, at least 1
  bool operator==(const DiffusionTraining&) const = default;
};

/// Trained tensors and additions of a run. By default the whole model is trained as config.json describes it,
/// without its multi-token prediction.
struct ModelChoices {
  std::set<TensorName> frozen;  ///< tensors that are not trained
  LoraAdapters lora;
  NoiseTraining noise;
  DiffusionTraining diffusion;
  MtpTraining mtp;  ///< trained (depths > 0): stored_depths() is num_nextn_predict_layers

  bool operator==(const ModelChoices&) const = default;
};

}  // namespace nemocube
