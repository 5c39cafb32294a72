#pragma once
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/megatron/blend.h"
#include "data/megatron/gpt_index.h"

/// Pretraining data in Megatron's files (NeMo AutoModel's MegatronPretraining, Megatron-LM's
/// GPTDataset): samples of S positions from token files, in a random order that seed and
/// number of samples determine. As there, a sample runs over the ends of documents. Every
/// position has a label. sample() reads the row.
namespace nemocube {

struct MegatronOptions {
  static constexpr std::int64_t max_samples = std::int64_t{1} << 40;
  std::vector<std::string> paths{};  ///< read_blend()
  MegatronSplit split = MegatronSplit::train;
  std::string shares = "900,50,50";  ///< of the splits in the sequences of each file
  std::int64_t seq_length = 2048;
  /// Samples in all; absent: the samples of one pass over the tokens. Files with weights need a number.
  std::optional<std::int64_t> samples = {};
  std::uint32_t seed = 1234;
  std::int64_t id_limit = std::numeric_limits<std::int64_t>::max();  ///< ids are below
};

/// The samples of one token file.
class GptDataset final : public Dataset {
 public:
  /// Throws Error as IndexedTokens and gpt_index() do.
  GptDataset(const std::string& prefix, const MegatronOptions& options);
  std::int64_t size() const override;
  /// Throws Error as IndexedTokens::read() does.
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t) const override { return options_.seq_length; }
  std::vector<DataFile> files() const override { return tokens_.files(); }

 private:
  IndexedTokens tokens_;
  MegatronOptions options_;
  GptIndex index_;
};

/// The samples of several token files. With weights w each file makes ceil(ceil(n w) * 1.005) samples, of
/// which ceil(n w) are used; without weights each makes one pass, and all, or the first n, are used.
class BlendedDataset final : public Dataset {
 public:
  /// Throws Error also when a file has fewer samples than its weight asks of it.
  BlendedDataset(const Blend& blend, const MegatronOptions& options);
  std::int64_t size() const override { return static_cast<std::int64_t>(places_.size()); }
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t i) const override;
  std::vector<DataFile> files() const override;

 private:
  void use_weights(const Blend& blend, MegatronOptions options);
  void use_sizes(const Blend& blend, MegatronOptions options);
  std::vector<std::unique_ptr<GptDataset>> parts_;
  std::vector<BlendSample> places_;
};

/// A GptDataset or BlendedDataset. Throws Error also when `samples` is not 1 to max_samples.
std::shared_ptr<const Dataset> make_megatron_dataset(const MegatronOptions& options);

}  // namespace nemocube
