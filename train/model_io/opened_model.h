#pragma once
#include <filesystem>
#include <optional>
#include <utility>

#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"

namespace nemocube {

/// A model directory, or a config.json alone, opened once: config.json is read at the start, the headers of
/// the weight files at their first use. Not for several threads at once.
class OpenedModel {
 public:
  /// Throws Error as read_hf_config() does.
  OpenedModel(
      const std::filesystem::path& directory)  // NOLINT(google-explicit-constructor): a path names a source
      : OpenedModel(directory, read_hf_config(directory)) {}
  OpenedModel(std::filesystem::path directory, ModelConfig config)
      : directory_(std::move(directory)), config_(std::move(config)) {}

  const std::filesystem::path& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }
  /// Throws Error as the constructor of HfWeights does, also where only a config.json was opened.
  const HfWeights& weights() const {
    if (!weights_) weights_.emplace(directory_);
    return *weights_;
  }

 private:
  std::filesystem::path directory_;
  ModelConfig config_;
  mutable std::optional<HfWeights> weights_;
};

}  // namespace nemocube
