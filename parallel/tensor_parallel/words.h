#pragma once
#include <span>
#include <string_view>

/// The words of plans of tensor parallelism: TensorStyle's own, those of NeMo AutoModel, and every word that
/// transformers registers (ALL_PARALLEL_STYLES). Which of them a module can have, its kind of block says
/// (CutRule). Source: transformers 5.24, distributed/tensor_parallel.py and expert_parallel.py; NeMo
/// AutoModel, components/distributed/parallelizer.py.
namespace nemocube {

struct TensorPlanWord {
  std::string_view word;
  /// The word of this table that says the same; empty: none does.
  std::string_view means = {};
  /// Why no module of any model here can have it; empty: some can.
  std::string_view refusal = {};
  std::string_view nearest = {};  ///< with `refusal`: the word that is served in its place
  /// It is about a stack of experts as a whole, "experts", which has no style: the experts' weights have one.
  bool of_experts = false;
};

std::span<const TensorPlanWord> tensor_plan_words();
/// Null for an unknown word.
const TensorPlanWord* find_tensor_plan_word(std::string_view word);
/// Words of plans for what the grid decides here, which are skipped: ep_router and others that begin with
/// "ep_", local_colwise, local_rowwise, gather.
bool is_skipped_in_tensor_plans(std::string_view word);

}  // namespace nemocube
