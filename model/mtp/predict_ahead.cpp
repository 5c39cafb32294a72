#include "core/allocation_owner.h"
#include "core/trace.h"
#include "model/blocks/block_type.h"
#include "model/stack.h"
#include "ops/view/view.h"

namespace nemocube {

void Stack::add_mtp_depths() {
  const std::int64_t blocks = std::ssize(config().mtp_blocks);
  for (std::int64_t depth = 0; depth < choices().mtp.stored_depths(); ++depth) {
    const auto name_of = [&](std::int64_t block) { return depth_name(depth * blocks + block); };
    const TensorName first = name_of(0), last = name_of(blocks - 1);
    const auto norm = [&](const TensorName& module) { return Norm(config(), parameters_, module); };
    MtpDepth& made = mtp_depths_.emplace_back(
        MtpDepth{norm(first / mtp_embedding_norm),
                 norm(first / mtp_hidden_norm),
                 std::make_unique<Linear>(MixerSources{setup_, config().common(), parameters_, points_},
                                          first / mtp_join),
                 {},
                 norm(last / mtp_final_norm)});
    for (std::int64_t i = 0; i < blocks; ++i) {
      const BlockKind kind = config().mtp_blocks[static_cast<std::size_t>(i)];
      const std::int64_t number = config().num_layers() + depth * blocks + i;
      made.blocks.push_back(make_block(number, kept_name(cat(kind, " block ", number)), name_of(i), kind));
    }
  }
}

std::vector<Var> Stack::predict_ahead(Context& ctx, const Var& hidden, const MtpInput& input) {
  const trace::Span span(trace::Category::forward, "multi-token prediction");
  const AllocationOwner owner("multi-token prediction");
  const std::size_t blocks = config().mtp_blocks.size();
  const auto depths = static_cast<std::size_t>(choices().mtp.depths);
  expect(input.ids.size() == depths, "multi-token prediction of ", depths, " depths with the ids of ",
         input.ids.size());
  std::vector<Var> states{hidden};
  for (std::size_t k = 0; k < depths; ++k) {
    const MtpDepth& depth = mtp_depths_.at(choices().mtp.repeated ? 0 : k);
    const Var embedded = depth.embedding_norm(
                  ctx, embed(ctx, input.ids[k], input.sequences, static_cast<bool>(token_rows), k + 1)),
              before = depth.hidden_norm(ctx, states.back());
    const Var joined = (*depth.join)(ctx, concat_last(ctx, embedded, before), input.sequences);
    const auto call_of = [&](std::size_t i) -> MixerCall {
      return {input.sequences, nullptr, input.records ? (*input.records)[k * blocks + i].get() : nullptr};
    };
    states.push_back(run_blocks(ctx, depth.blocks, &depth.final_norm, joined, call_of));
  }
  states.erase(states.begin());
  return states;
}

BlockRecords Stack::make_mtp_records() const {
  BlockRecords records;
  for (std::int64_t k = 0; k < choices().mtp.depths && !mtp_depths_.empty(); ++k)
    for (const Block& block : mtp_depths_[choices().mtp.repeated ? 0 : static_cast<std::size_t>(k)].blocks)
      records.push_back(block.mixer->make_record());
  return records;
}

}  // namespace nemocube
