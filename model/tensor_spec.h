#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "model/tensor_name.h"

/// A tensor of a model before it exists: name and shape, how fresh values are drawn, and how tensor
/// parallelism cuts the tensor.
namespace nemocube {

/// How fresh values of a tensor are drawn; model/initialise.h has the distributions.
enum class InitialLaw : std::uint8_t {
  input,        ///< projections into a block, embeddings, lm_head, routers
  output,       ///< projections out of a block
  scan_output,  ///< the projection behind Mamba's scan
  conv,
  a_log,
  a_log_uniform,  ///< of Gated DeltaNet
  dt_bias,
  one,
  zero,
  lora_normal,  ///< A of an adapter
  lora_uniform
};

enum class TensorStyle : std::uint8_t {
  replicated,         ///< every rank holds the whole tensor and computes all rows
  colwise,            ///< outputs are cut: rows of the weight, and the bias
  rowwise,            ///< inputs are cut: columns of the weight; results are added over ranks, then the bias
  vocab_parallel,     ///< tokens are cut: rows of the weight
  sequence_parallel,  ///< every rank holds all and computes its own rows. Norms do so only where the residual
                      ///< stream is cut (sequence parallel), routers and latent projections always
  expert_colwise,     ///< experts are cut over ep, their outputs over expt_tp
  expert_rowwise,     ///< experts are cut over ep, their inputs over expt_tp
};
std::string_view name_of(TensorStyle style);

/// Heads of which several tensor-parallel ranks hold the same where there are fewer heads than ranks.
enum class SharedHeads : std::uint8_t {
  none,
  key_value,  ///< of attention
  state,      ///< the groups of B and C of Mamba
};

/// Rows of a tensor that are cut on their own, into at most `heads` equal parts.
struct RowSegment {
  std::int64_t rows;
  std::int64_t heads = 0;  ///< 0: as many as there are ranks
};

struct BlockConfig;

/// How tensor parallelism cuts a tensor (parallel/tensor_parallel).
struct CutRule {
  /// The module whose style counts, as a part of a block: "in_proj". Empty: the tensor's own module, which is
  /// the tensor's name without ".weight" and ".bias".
  std::string_view module = {};
  TensorStyle style = TensorStyle::replicated;  ///< the usual one
  bool replicable = false;                      ///< a plan may say `replicated` instead
  std::span<const std::string_view> also = {};  ///< words of other plans that mean `style` here
  /// With TensorStyle::sequence_parallel: the rows are cut even where the residual stream is not.
  bool always_own_rows = false;
  /// A bias that is added after the sum over ranks (model/blocks/linear.h).
  bool added_last = false;
  /// With TensorStyle::colwise, and of an expert with expert_colwise: the segments of the rows, one after
  /// another; null: all rows are one.
  std::vector<RowSegment> (*segments)(const BlockConfig&) = nullptr;
  SharedHeads shared = SharedHeads::none;  ///< the heads of segments with fewer heads than ranks
  /// With TensorStyle::colwise: nothing of the tensor is cut. Every rank applies the tensor to its own heads
  /// and has a part of the gradient.
  bool of_each_head = false;
};

/// The usual cuts of a layer into a block, of a layer out of a block, and of that layer's bias.
inline constexpr CutRule cut_by_columns{.style = TensorStyle::colwise, .replicable = true};
inline constexpr CutRule cut_by_rows{.style = TensorStyle::rowwise, .replicable = true};
inline constexpr CutRule cut_by_rows_bias{
    .style = TensorStyle::rowwise, .replicable = true, .added_last = true};

/// The two factors of a low-rank adapter, W + s B A (model/lora.h).
enum class LoraFactor : std::uint8_t { none, a, b };

struct TensorSpec {
  TensorName id;
  std::string name;  ///< the text of `id`, for messages, files and random streams (ModelConfig::names)
  Shape shape;
  bool keep_f32 = false;  ///< f32 in memory and in files, whatever the dtype of the model
  bool buffer = false;    ///< state that is saved but not trained by gradient
  bool experts = false;   ///< dimension 0 counts experts; most files hold one tensor for each expert
  bool linear =
      false;  ///< a weight that an adapter may be added to: of a linear layer, or a stack of experts
  LoraFactor factor =
      LoraFactor::none;  ///< of an adapter; then `module` and `cut` belong to the adapted weight
  bool frozen = false;   ///< not trained in this run (ModelChoices::frozen)
  InitialLaw law = InitialLaw::zero;
  TensorName module = {};        ///< the full name of CutRule::module
  const CutRule* cut = nullptr;  ///< lives as long as the program
};

struct TensorCount {
  std::int64_t tensors = 0;  ///< a stack of experts counts once for each expert
  std::int64_t elements = 0;
  std::int64_t buffers = 0;  ///< those elements that belong to buffers, which no optimizer changes
  std::int64_t frozen = 0;   ///< and those that belong to parameters that are not trained

  std::int64_t parameters() const { return elements - buffers; }
  std::int64_t trained() const { return parameters() - frozen; }
};
/// Throws Error naming the tensor at which the count overflows.
TensorCount count_tensors(std::span<const TensorSpec> specs);

}  // namespace nemocube
