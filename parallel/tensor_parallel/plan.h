#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

/// The plan of tensor parallelism: for each module of a model how its weights are cut over the tp ranks.
///
/// Patterns name modules as texts (ModelConfig::names), without ".weight" and ".bias"; `*` stands for any
/// characters but a dot. The first rule whose pattern matches a module counts. The rules of the user come
/// first, then the usual plan:
///
///     backbone.embeddings, lm_head                  vocab_parallel        no lm_head where the head is tied
///     ...norm, ...post_norm, backbone.norm_f        sequence_parallel
///     mtp...enorm, hnorm, eh_proj, final_layernorm  sequence_parallel
///     ...mixer.q_proj, k_proj, v_proj / o_proj      colwise / rowwise     by head
///     ...mixer.in_proj / out_proj                   colwise / rowwise     by head and group
///     ...mixer.up_proj / down_proj                  colwise / rowwise     also those of shared_experts
///     ...mixer.gate, fc1_latent_proj, fc2_latent_proj                     sequence_parallel
///     ...mixer.experts.up_proj / down_proj          expert_colwise / expert_rowwise
///
/// The kinds of blocks say so themselves (model/blocks, CutRule). A mixer (or shared expert) is cut as a
/// whole or is `replicated` as a whole, and mixers on one norm (Residual::shared_norm) are alike. Mamba's
/// convolution, A_log, D, dt_bias and gated norm have no rules: they follow in_proj.
///
/// Words of other plans: embeddings may be `rowwise` or `rowwise_rep`, lm_head `colwise` or `colwise_rep`,
/// with the same meaning as vocab_parallel. Words of Hugging Face's plans for what the grid decides here are
/// skipped with a note: replicated_with_grad_allreduce, ep_router and all others that begin with "ep_",
/// local_colwise, local_rowwise, gather. Source: the style words of NeMo AutoModel,
/// components/distributed/parallelizer.py.
namespace nemocube {

struct TensorParallelRule {
  std::string pattern, style;
};

class TensorParallelPlan {
 public:
  /// sequence_parallel: between the blocks each tp rank has its part of the rows only.
  /// Throws Error for a style word that is unknown, or that the module cannot have; a pattern that matches no
  /// module of the model; and mixers, or several on one norm, that are cut in part, naming two modules that
  /// differ.
  explicit TensorParallelPlan(const ModelSetup& setup, bool sequence_parallel = false,
                              const std::vector<TensorParallelRule>& rules = {});

  bool sequence_parallel() const { return sequence_parallel_; }
  TensorStyle style(const TensorName& module) const;
  /// Of the module that decides about the tensor.
  TensorStyle style(const TensorSpec& tensor) const { return style(tensor.module); }
  /// Whether a block of the model has this module, "q_proj", and the module is not replicated.
  bool cuts_any(std::string_view module_of_block) const;
  /// The rules that count for some module, in their order.
  const std::vector<TensorParallelRule>& rules() const { return rules_; }
  const std::vector<std::string>& notes() const {
    return notes_;
  }  ///< on rules that are skipped, for the log

 private:
  bool sequence_parallel_;
  std::map<TensorName, TensorStyle> styles_;  // of each module
  ModelNames names_;
  std::vector<TensorParallelRule> rules_;
  std::vector<std::string> notes_;
};

}  // namespace nemocube
