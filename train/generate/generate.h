#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/variants.h"
#include "model/stack.h"
#include "parallel/parallel_model/parallel_model.h"
#include "train/logging/progress.h"

namespace nemocube {

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  double temperature = 0;  ///< this and the next two: SamplingOptions (ops/sample_tokens)
  std::int64_t top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 0;              ///< draw n of prompt i depends on (seed, i, n) alone
  std::vector<std::int64_t> stop_ids;  ///< each ends a sequence and is left out of the result
  const KernelChoice* kernels = nullptr;
};

/// Called with each new token; return true to end that sequence after it.
using OnToken = std::function<bool(std::size_t prompt, std::int64_t id)>;

/// Throws Error: temperature < 0, top_p outside (0, 1], negative top_k or max_new_tokens.
void check_generate_options(const GenerateOptions& options);

/// Continues every prompt (at least one token id each) and returns the new ids of each. Prompts run in groups
/// of 32, so that memory does not grow with their number. A group is prefilled together; each step then adds
/// one token to every running sequence, from Mamba states and KV caches. Throws Error for invalid options, an
/// empty prompt or an id outside the vocabulary. `progress` counts new tokens out of max_new_tokens per
/// prompt; a prompt that ended early counts as max_new_tokens. Unless replicas are independent, all ranks of
/// the model call together; the ranks of a replica have the same prompts.
std::vector<std::vector<std::int64_t>> generate(ParallelModel& model,
                                                const std::vector<std::vector<std::int64_t>>& prompts,
                                                const GenerateOptions& options, const OnToken& on_token = {},
                                                const OnProgress& progress = {});

}  // namespace nemocube
