#include "parallel/data_parallel/first_exchanges.h"

#include <map>

namespace nemocube {
namespace {

using Then = std::function<void()>;

Transform calling_after_forward(Transform inner, const Then& then) {
  return [inner = std::move(inner), then](Context& ctx, const Var& x, const Sequences& whole) {
    Var y = apply(inner, ctx, x, whole);
    then();
    return y;
  };
}

// The closure that is recorded first runs last.
Transform calling_after_backward(Transform inner, const Then& then) {
  return [inner = std::move(inner), then](Context& ctx, const Var& x, const Sequences& whole) {
    if (ctx.tape) ctx.tape->record("first exchange", then);
    return apply(inner, ctx, x, whole);
  };
}

}  // namespace

FirstExchanges::FirstExchanges(Stack& model, bool experts_elsewhere, const Then& then) {
  std::set<std::int64_t> with_experts;
  std::map<Transform*, std::int64_t> first, last;  // block that has it as its way in, or out
  const auto block_at = [](const TensorName& name) { return name.block_of_model().value_or(embeddings); };
  for (const auto& [name, point] : model.transform_points())
    if (point.role == PointRole::experts_out && !name.in_depth()) with_experts.insert(block_at(name));
  for (const auto& [name, point] : model.transform_points()) {
    const std::int64_t block = block_at(name);
    if (point.role == PointRole::way_in && block == embeddings) continue;  // of the head
    if (name.in_depth()) continue;                                         // in no unit of its own
    Transform& transform = *point.transform;
    const bool ways = transform && (point.shared || !with_experts.contains(block)),
               in = ways && point.role == PointRole::way_in,
               out = (ways && point.role == PointRole::way_out) ||
                     (experts_elsewhere && point.role == PointRole::experts_out);
    if (in) first.emplace(&transform, block);
    if (out) last[&transform] = block;
  }
  const auto wrap = [&](const auto& blocks_of, std::set<std::int64_t>& passes, auto calling) {
    for (const auto& [transform, block] : blocks_of) {
      passes.insert(block);
      Transform wrapped = calling(*transform, then);
      replaced_.emplace_back(transform, std::exchange(*transform, std::move(wrapped)));
    }
  };
  wrap(first, forward_, calling_after_forward);
  wrap(last, backward_, calling_after_backward);
}

FirstExchanges::~FirstExchanges() {
  for (auto& [transform, before] : replaced_) *transform = std::move(before);
}

}  // namespace nemocube
