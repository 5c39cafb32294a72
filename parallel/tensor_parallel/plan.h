#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

/// The plan of tensor parallelism: for each module of a model how its weights are cut over the tp ranks.
///
/// Patterns name modules as texts (ModelConfig::names) or as an alias of these does (NameTable::canonical),
/// without ".weight" and ".bias"; `*` stands for any characters but a dot. Every module that has a weight can
/// be named. The first rule whose pattern matches a module counts. The rules of the user come
/// first, then the usual plan:
///
///     backbone.embeddings, lm_head                  vocab_parallel        no lm_head where the head is tied
///     ...norm, ...post_norm, backbone.norm_f        sequence_parallel
///     mtp...enorm, hnorm, eh_proj, final_layernorm  sequence_parallel
///     ...mixer.q_proj, k_proj, v_proj / o_proj      colwise / rowwise     by head
///     ...mixer.in_proj / out_proj                   colwise / rowwise     by head and group
///     ...mixer.up_proj / down_proj                  colwise / rowwise     also those of shared_experts
///     ...mixer.gate, fc1_latent_proj, fc2_latent_proj                     sequence_parallel
///     ...mixer.experts.up_proj / down_proj          expert_colwise / expert_rowwise, also gate_up_proj
///
/// The kinds of blocks say so themselves (model/blocks, CutRule). A mixer (or shared expert) is cut as a
/// whole or is `replicated` as a whole, and mixers on one norm (Residual::shared_norm) are alike. Modules
/// whose cut follows from another (CutRule::module) need no rule, and one that names them is to say what they
/// are: Mamba's convolution and gated norm follow in_proj (`colwise`), norms of heads q_proj
/// (`replicated_with_grad_allreduce`), and the head of a tied model the embeddings.
///
/// Words of other plans (words.h) have a meaning where the module has it:
///
///     replicate                       replicated; of norms too where rows are not cut
///     rowwise, rowwise_rep (rowwise_split_input), embedding_rowwise       embeddings: vocab_parallel
///     colwise, colwise_rep (colwise_gather_output)                        lm_head: vocab_parallel
///     replicated_with_grad_allreduce  norms of heads; what has its own rows: routers, and norms where rows
///                                     are cut
///     colwise or rowwise, grouped_gemm, and of the stack moe_tp_experts, ep_dispatch_experts
///                                     experts: over how many ranks, the grid says (a note)
///     packed_colwise                  experts.gate_up_proj, likewise
///
/// The others are refused by name. Words for what the grid decides here are skipped with a note.
namespace nemocube {

struct TensorParallelRule {
  std::string pattern, style;
};

class TensorParallelPlan {
 public:
  /// sequence_parallel: between the blocks each tp rank has its part of the rows only.
  /// Throws Error for a style word that is unknown, or that the module cannot have, naming the word that it
  /// can have; a pattern that matches no module of the model; and mixers, or several on one norm, that are
  /// cut in part, naming two modules that differ.
  explicit TensorParallelPlan(const ModelSetup& setup, bool sequence_parallel = false,
                              const std::vector<TensorParallelRule>& rules = {});

  bool sequence_parallel() const { return sequence_parallel_; }
  TensorStyle style(const TensorName& module) const;
  /// Of the module that decides about the tensor.
  TensorStyle style(const TensorSpec& tensor) const { return style(tensor.module); }
  /// Whether a block of the model has this module, "q_proj", and the module is not replicated; of those
  /// blocks alone that `counts` accepts the module of, where it is given.
  bool cuts_any(std::string_view module_of_block,
                const std::function<bool(const TensorName&)>& counts = {}) const;
  /// The rules that count for some module, in their order.
  const std::vector<TensorParallelRule>& rules() const { return rules_; }
  const std::vector<std::string>& notes() const {
    return notes_;
  }  ///< on rules that are skipped, or of which the grid says more, for the log

 private:
  bool sequence_parallel_;
  std::map<TensorName, TensorStyle> styles_;  // of each module
  ModelNames names_;
  std::vector<TensorParallelRule> rules_;
  std::vector<std::string> notes_;
};

}  // namespace nemocube
