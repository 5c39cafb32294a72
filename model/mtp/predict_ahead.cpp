#include "core/allocation_owner.h"
#include "core/trace.h"
#include "model/blocks/block_type.h"
#include "model/nemotron_h.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/view/view.h"

namespace nemocube {

void NemotronH::add_mtp_depths() {
  const std::int64_t blocks = std::ssize(config_.mtp_blocks);
  for (std::int64_t depth = 0; depth < config_.mtp.stored_depths(); ++depth) {
    const auto name_of = [&](std::int64_t block) { return cat("mtp.layers.", depth * blocks + block); };
    const std::string first = name_of(0), last = name_of(blocks - 1);
    MtpDepth& made = mtp_depths_.emplace_back();
    made.embedding_norm = &parameters_.get(first + ".enorm.weight");
    made.hidden_norm = &parameters_.get(first + ".hnorm.weight");
    made.join = std::make_unique<Linear>(MixerSources{config_, config_.common(), parameters_, points_},
                                         first + ".eh_proj");
    for (std::int64_t i = 0; i < blocks; ++i) {
      const BlockKind kind = config_.mtp_blocks[static_cast<std::size_t>(i)];
      const std::int64_t number = config_.num_layers() + depth * blocks + i;
      made.blocks.push_back(make_layer(number, kept_name(cat(kind, " block ", number)), name_of(i), kind));
    }
    made.final_norm = &parameters_.get(last + ".final_layernorm.weight");
  }
}

std::vector<Var> NemotronH::predict_ahead(Context& ctx, const Var& hidden, const MtpInput& input) {
  const trace::Span span(trace::Category::forward, "multi-token prediction");
  const AllocationOwner owner("multi-token prediction");
  const std::size_t blocks = config_.mtp_blocks.size();
  const auto depths = static_cast<std::size_t>(config_.mtp.depths);
  expect(input.ids.size() == depths, "multi-token prediction of ", depths, " depths with the ids of ",
         input.ids.size());
  std::vector<Var> states{hidden};
  for (std::size_t k = 0; k < depths; ++k) {
    const MtpDepth& depth = mtp_depths_.at(config_.mtp.repeated ? 0 : k);
    const double eps = config_.layer_norm_epsilon;
    const Var embedded = rmsnorm(
                  ctx, embed(ctx, input.ids[k], input.sequences, static_cast<bool>(token_rows), k + 1),
                  depth.embedding_norm->var(), eps),
              before = rmsnorm(ctx, states.back(), depth.hidden_norm->var(), eps);
    const Var joined = (*depth.join)(ctx, concat_last(ctx, embedded, before), input.sequences);
    const auto call_of = [&](std::size_t i) -> MixerCall {
      return {input.sequences, nullptr, input.records ? (*input.records)[k * blocks + i].get() : nullptr};
    };
    states.push_back(run_blocks(ctx, depth.blocks, depth.final_norm, joined, call_of));
  }
  states.erase(states.begin());
  return states;
}

BlockRecords NemotronH::make_mtp_records() const {
  BlockRecords records;
  for (std::int64_t k = 0; k < config_.mtp.depths && !mtp_depths_.empty(); ++k)
    for (const Layer& block : mtp_depths_[config_.mtp.repeated ? 0 : static_cast<std::size_t>(k)].blocks)
      records.push_back(block.mixer->make_record());
  return records;
}

}  // namespace nemocube
