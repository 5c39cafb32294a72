#include "parallel/tensor_parallel/words.h"

#include <algorithm>
#include <array>

namespace nemocube {
namespace {

constexpr std::array all{
    TensorPlanWord{"replicated"},
    TensorPlanWord{"colwise"},
    TensorPlanWord{"rowwise"},
    TensorPlanWord{"colwise_rep"},
    TensorPlanWord{"rowwise_rep"},
    TensorPlanWord{"sequence_parallel"},
    TensorPlanWord{"vocab_parallel"},
    TensorPlanWord{"expert_colwise"},
    TensorPlanWord{"expert_rowwise"},
    TensorPlanWord{"replicated_with_grad_allreduce"},
    TensorPlanWord{"replicate", "replicated"},
    TensorPlanWord{"colwise_gather_output", "colwise_rep"},
    TensorPlanWord{"rowwise_split_input", "rowwise_rep"},
    TensorPlanWord{"embedding_rowwise"},
    TensorPlanWord{"packed_colwise"},
    TensorPlanWord{"grouped_gemm"},
    TensorPlanWord{.word = "moe_tp_experts", .of_experts = true},
    TensorPlanWord{.word = "ep_dispatch_experts", .of_experts = true},
    TensorPlanWord{"embedding_colwise", "", "embeddings are cut by tokens", "embedding_rowwise"},
    TensorPlanWord{"packed_rowwise", "", "no weight here has the columns of two layers", "rowwise"},
    TensorPlanWord{"all_reduce", "", "the last layer of a module adds the outputs of all ranks", "rowwise"},
    TensorPlanWord{"local_params", "", "parameters beside a linear layer are cut with it", "colwise"},
    TensorPlanWord{"mla_kv_a_proj", "", "no attention here has latent keys and values", "replicated"},
    TensorPlanWord{"moe_identity_expert", "", "no expert here returns its input", "moe_tp_experts"},
};

}  // namespace

std::span<const TensorPlanWord> tensor_plan_words() { return all; }

const TensorPlanWord* find_tensor_plan_word(std::string_view word) {
  const auto found = std::ranges::find(all, word, &TensorPlanWord::word);
  return found == all.end() ? nullptr : &*found;
}

bool is_skipped_in_tensor_plans(std::string_view word) {
  constexpr std::array<std::string_view, 3> words{"local_colwise", "local_rowwise", "gather"};
  return std::ranges::count(words, word) > 0 ||
         (word.starts_with("ep_") && find_tensor_plan_word(word) == nullptr);
}

}  // namespace nemocube
