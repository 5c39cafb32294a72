#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/parameters.h"

namespace nemocube {

/// What sharded data parallelism divides among its ranks. A level divides what the level before does, too.
enum class ZeroLevel : std::uint8_t {
  none,        ///< nothing: every rank keeps and updates everything (DDP)
  optimizer,   ///< ZeRO-1: optimizer state and masters
  gradients,   ///< ZeRO-2: and the gradients
  parameters,  ///< ZeRO-3: and the parameters
};

/// The block whose unit has the parameter: the block of its mixer. Nothing for parameters of the root unit:
/// embeddings, norms, head, and multi-token prediction, whose blocks may be applied several times. Norms of
/// blocks are in the root, because one operation adds up a block and applies the norm of the next.
std::optional<std::int64_t> unit_of(const TensorName& parameter);

/// Where parameters start in a flat buffer: at multiples of `alignment` elements, as does each rank's part.
struct FlatLayout {
  static constexpr std::int64_t alignment = 64;  ///< elements: whole cache lines in every dtype
  /// `counts`: elements of each parameter.
  FlatLayout(std::span<const std::int64_t> counts, std::int64_t ranks);
  std::vector<std::int64_t> starts;
  std::int64_t size = 0, shard = 0;  ///< elements of the buffer, and of each rank's part
};

/// Some parameters of one dtype, one after another in flat buffers, so that one collective moves all of them.
///
///     values      [n shard]   dtype of the parameters: Parameter::value are views
///     gradients   [n shard]   accumulation dtype: the gradients of the leaves are views
///
/// Parameters that are not trained have values alone.
///
/// Rank r of n owns elements [r shard, (r + 1) shard), regardless of the borders of parameters. The gaps
/// between parameters (FlatLayout) travel with the rest and are zeros.
/// Source: Megatron-LM, param_and_grad_buffer.py (without its buckets: a unit is one block).
class FlatUnit {
 public:
  /// Takes over the parameters, which have no memory yet (meta): gives them values and gradients here, and
  /// the own part of rank `rank` of `ranks`: with ZeroLevel::none everything. Throws std::logic_error for
  /// parameters of several dtypes, some of which are trained and some not, or with memory of their own.
  FlatUnit(std::vector<Parameter*> parameters, ZeroLevel level, int rank, int ranks, Device device);

  bool trained() const { return parameters_[0]->wants_grad(); }
  /// Whether own_values() is memory apart from values(), which then may be released: ZeRO-3 on
  /// several ranks. With ZeRO-2 and 3 own_gradients() has memory of its own even on one rank: the
  /// sum over the step's microbatches so far.
  bool divides_values() const { return divides_values_; }
  const Tensor& values() const { return values_; }
  const Tensor& own_values() const { return own_values_; }
  /// Undefined where nothing is trained.
  const Tensor& gradients() const { return gradients_; }
  const Tensor& own_gradients() const { return own_gradients_; }
  /// The memory of the gradients after its release. Parameters have any values there, and gaps zeros.
  void restore_gradients() const;
  /// Zeros for the parameters that no kernel wrote a gradient of since the last clear.
  void complete_gradients() const;
  void clear_gradients() const;

 private:
  std::vector<Parameter*> parameters_;
  bool divides_values_ = false;
  Tensor values_, own_values_, gradients_, own_gradients_;
  std::vector<Tensor> gradient_gaps_;
};

}  // namespace nemocube
