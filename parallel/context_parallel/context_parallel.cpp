#include "parallel/context_parallel/context_parallel.h"

#include "model/blocks/attention/attention.h"
#include "model/blocks/gated_delta_net/gated_delta_net.h"
#include "model/blocks/mamba/mamba.h"
#include "parallel/context_parallel/attention_cores.h"
#include "parallel/context_parallel/delta_net_core.h"
#include "parallel/context_parallel/mamba_core.h"
#include "parallel/context_parallel/sequence_cut.h"

namespace nemocube {

ContextParallel::ContextParallel(Stack& model, Communicator& group, ContextAttention attention)
    : group_(group) {
  if (group.size() == 1) return;
  model.token_rows = [this](const Sequences& whole) { return own(whole); };
  for (AttentionMixer* mixer : model.mixers<AttentionMixer>())
    mixer->set_core(attention == ContextAttention::ring ? ring_attention(group) : all_gather_attention(group),
                    model.token_rows);
  for (MambaMixer* mixer : model.mixers<MambaMixer>()) mixer->set_core_runner(context_parallel_mamba(group));
  for (GatedDeltaNetMixer* mixer : model.mixers<GatedDeltaNetMixer>())
    mixer->set_core_runner(context_parallel_delta_net(group));
}

Sequences ContextParallel::own(const Sequences& whole) const {
  return cut() ? SequenceCut(whole, group_.size(), group_.rank()).local() : whole;
}

Tensor ContextParallel::own_tokens(const Tensor& per_token, const Sequences& whole) const {
  return cut() ? SequenceCut(whole, group_.size(), group_.rank()).own(per_token) : per_token;
}

}  // namespace nemocube
