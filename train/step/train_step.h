#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/variants.h"
#include "data/loader/batch.h"
#include "model/stack.h"
#include "parallel/parallel_model/parallel_model.h"
#include "train/optimizer/optimizer.h"
#include "train/step/step_replay.h"

namespace nemocube {

struct StepOptions {
  double lr = 0, weight_decay = 0;
  double max_norm = 1.0;  ///< clip the global gradient norm to this; infinity: do not clip
  double expert_bias_rate =
      0;  ///< step of the routers' correction bias (nemotron_h auxiliary-loss-free balancing)
  const KernelChoice* kernels = nullptr;
  StepReplay* replay =
      nullptr;  ///< of the same model, optimizer and kernels in every step; null: no CUDA graphs
};

enum class StepOutcome {
  updated,
  no_labels,   ///< nothing in the batch is labelled: loss 0, no weight has changed
  non_finite,  ///< loss or gradient norm is infinite or NaN: no weight has changed
};

/// The same on all ranks.
struct StepResult {
  /// Sum of token losses / labelled tokens, over all microbatches; where tokens are noised, plus the weighted
  /// sum of their losses / noised tokens (docs/block_diffusion.md).
  double loss = 0;
  double grad_norm = 0;  ///< before clipping
  /// Of each depth of multi-token prediction, by the same number of labelled tokens; not part of `loss`.
  std::vector<double> mtp_losses;
  std::int64_t label_tokens = 0;
  StepOutcome outcome = StepOutcome::updated;
  /// Name of the first parameter or router bias whose value, master or moments are not finite after the
  /// update; empty when all are finite. With such a name, the model is lost.
  std::string not_finite;
  /// The routers' auxiliary losses (ops/router/router.h) that have a coefficient, by name: summed over the
  /// layers, averaged over the microbatches. Not part of `loss`; empty when nothing is labelled.
  std::vector<std::pair<std::string, double>> auxiliary_losses;
  std::vector<Tensor> expert_counts;  ///< of each MoE layer [E] i64: tokens sent to each expert
};

/// One optimizer step over the microbatches of a global batch: forward and backward of
/// each, gradients summed in f32 and divided by the global label count once, clip,
/// update, router bias update. Gradients are cleared in every case. All ranks call
/// together, with equally many microbatches.
StepResult train_step(ParallelModel& model, Optimizer& optimizer, std::span<const TokenBatch> microbatches,
                      const StepOptions& options);

/// Counts of evaluate_loss().
struct EvaluatedTokens {
  std::int64_t labels = 0, noised = 0;  ///< TokenBatch::label_tokens and noised_tokens
};
/// Adds the token losses of one batch to sums[0], and the weighted ones of its noised tokens to sums[1].
/// `sums` is [2] f64, on the device of the model. Nothing is recorded, and the host does not wait. Each rank
/// adds a share and returns counts; the sums over all ranks count every replica's batch once. `token_losses`,
/// where not null, is set as by Stack::loss() for the rank's own labels (ParallelModel::own_tokens) that are
/// not noised, and is left undefined on ranks without the head.
EvaluatedTokens evaluate_loss(ParallelModel& model, const TokenBatch& batch, const KernelChoice* kernels,
                              const Tensor& sums, Tensor* token_losses = nullptr);

}  // namespace nemocube
