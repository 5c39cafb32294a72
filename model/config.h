#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/blocks/block_config.h"
#include "model/blocks/block_kind.h"
#include "model/lora.h"
#include "model/tensor_spec.h"

/// The config of a NemotronH model: its sizes, its blocks, and the names and shapes of its tensors. Field
/// names and defaults are those of Hugging Face's config class for `nemotron_h`, except that `blocks` has no
/// default. data/hf reads config.json.
namespace nemocube {

std::string to_pattern(std::span<const BlockKind> blocks);  ///< "MEM*-"

/// A parsed pattern string. `blocks` are the letters before the first '/'. Each '/' starts one list of `mtp`,
/// the blocks of one depth of multi-token prediction. '|' (a pipeline cut) is skipped. Any other letter
/// throws Error naming the letter and its position.
struct BlockPattern {
  std::vector<BlockKind> blocks;
  std::vector<std::vector<BlockKind>> mtp;
};
BlockPattern parse_pattern(std::string_view pattern);
std::vector<BlockKind> usual_mtp_blocks();  ///< attention, moe

/// How a run trains multi-token prediction (docs/mtp.md). config.json has no such keys.
struct MtpTraining {
  std::int64_t depths =
      0;  ///< that are predicted; 0: none, and the tensors of a model's files are carried as they are
  bool repeated = false;        ///< all depths are one, whose weights are applied once for each depth
  double scaling_factor = 0.1;  ///< beta of the total loss: L + beta / depths * sum_k L_k

  std::int64_t stored_depths() const { return repeated && depths > 0 ? 1 : depths; }  ///< that have weights
  auto operator<=>(const MtpTraining&) const = default;
};

/// How a run adds noise to the output of the embeddings in training (NEFTune, docs/recipe.md). config.json has no such keys.
///
/// The noise is uniform in +-alpha / sqrt(S H), with S tokens in a padded row (Sequences::padded_length) and hidden size H.
struct NoiseTraining {
  double alpha = 0;  ///< 0: no noise
  std::uint64_t seed = 0;
  bool operator==(const NoiseTraining&) const = default;
};

/// A kind of block with sizes that blocks of a model have.
struct BlockVariant {
  BlockKind kind;
  const BlockConfig* config;        ///< in the NemotronHConfig
  std::optional<std::int64_t> own;  ///< the block that has this config as its own; none: the common one
  std::int64_t count;               ///< how many of NemotronHConfig::blocks these are
};
/// For messages: " of block 3"; nothing for the common sizes (BlockVariant::own).
std::string of_block(std::optional<std::int64_t> own);
/// Calls `check`. Where the variant is a block's own, the message of an Error begins with "block 3: ".
void check_block(const BlockVariant& variant, const std::function<void()>& check);

struct NemotronHConfig : BlockConfig {
  std::int64_t vocab_size = 131072;
  std::vector<BlockKind> blocks;
  /// Of pruned models: the config of each block whose sizes differ from the common ones, by the number of the block.
  std::map<std::int64_t, BlockConfig> own_configs;
  bool residual_in_fp32 = false;
  bool tie_word_embeddings = false;

  std::int64_t num_nextn_predict_layers = 0;  ///< depths of multi-token prediction stored with the model
  std::vector<BlockKind> mtp_blocks = usual_mtp_blocks();  ///< the blocks of each depth
  MtpTraining mtp;  ///< where `depths` is above 0, num_nextn_predict_layers is stored_depths()

  double initializer_range = 0.02;
  bool rescale_prenorm_residual = true;
  std::int64_t max_position_embeddings = 4096;
  std::optional<std::int64_t> pad_token_id = 0, bos_token_id = 1;
  std::vector<std::int64_t> eos_token_id{2};
  std::optional<DType> dtype;  ///< of the stored weights, as config.json says; f16 appears as f32

  /// Canonical names of the tensors that this run does not train. Of the run, not of the model: config.json has no such key.
  std::set<std::string, std::less<>> frozen;
  LoraAdapters lora;    ///< of the run as well
  NoiseTraining noise;  ///< of the run as well

  std::int64_t num_layers() const { return static_cast<std::int64_t>(blocks.size()); }
  bool has(BlockKind kind) const;  ///< in `blocks`, or in `mtp_blocks` when they are in use
  std::int64_t count(BlockKind kind) const;
  std::vector<BlockKind> kinds() const;  ///< for which has() is true, in the order of block_kinds()
  bool has_experts() const;              ///< whether one of kinds() has routed experts
  /// How many experts each block with routed experts has: those of `blocks`, and of the stored depths of `mtp`, which come
  /// last.
  std::vector<std::int64_t> expert_counts() const;
  std::int64_t expert_layers() const;  ///< how many such blocks there are
  std::int64_t most_experts() const;   ///< of such a block; 0 without one

  /// Of all blocks that have no config of their own, those of multi-token prediction included.
  const BlockConfig& common() const { return *this; }
  const BlockConfig& block(std::int64_t i) const;  ///< of block i of `blocks`
  /// Of the block to which this tensor or module belongs, by its name; the common one for those of no block.
  const BlockConfig& of_tensor(std::string_view name) const;
  /// Each kind of block in use with each of its configs: first the common one, where a block of the kind has that, then the own
  /// config of each block that has one.
  std::vector<BlockVariant> variants() const;

  /// Sets `mtp`, and num_nextn_predict_layers where depths are trained.
  void train_mtp(const MtpTraining& training);
  /// Throws Error unless a model of at most 2^50 parameters can be built from this config. The message names
  /// the key, the accepted values and the given value, and the block where that has a config of its own. Keys that no block kind
  /// in use needs are not checked.
  void validate() const;
  bool operator==(const NemotronHConfig&) const = default;
};

/// Every tensor of the model in canonical order: embeddings, blocks, final norm, head. Canonical names begin
/// with "backbone." (or are "lm_head.weight"); experts are stacked, `experts.up_proj` [experts, inner, outer]
/// and `experts.down_proj` [experts, outer, inner]. The two factors of an adapter follow their weight. The tensors of multi-token
/// prediction come last, where the run trains them (NemotronHConfig::mtp); else they are not among them.
/// pre: the config is valid
std::vector<TensorSpec> tensor_specs(const NemotronHConfig& config);
/// The tensors of multi-token prediction, "mtp.layers.{depth * blocks + block}...."; empty when the model has
/// no such depth.
std::vector<TensorSpec> mtp_tensor_specs(const NemotronHConfig& config);
/// The same model with all depths of multi-token prediction that it has, as for training them.
NemotronHConfig with_stored_mtp(NemotronHConfig config);
/// Whether the tensor of this name (canonical, or as spelled in a file) has keep_f32.
bool keeps_f32(std::string_view name);

}  // namespace nemocube
