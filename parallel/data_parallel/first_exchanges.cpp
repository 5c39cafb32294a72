#include "parallel/data_parallel/first_exchanges.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace nemocube {
namespace {

using Then = std::function<void()>;

/// The ends of names of transform points. Shared experts have points with other names.
constexpr std::array<std::string_view, 3> ways_in{".mixer.in_proj.input", ".mixer.qkv.input",
                                                  ".mixer.up_proj.input"};
constexpr std::array<std::string_view, 4> ways_out{".mixer.out_proj.output", ".mixer.o_proj.output",
                                                   ".mixer.down_proj.output", "backbone.embeddings.output"};
constexpr std::string_view of_experts = ".mixer.experts.output";

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

FirstExchanges::FirstExchanges(NemotronH& model, bool experts_elsewhere, const Then& then) {
  for (const auto& [point, transform] : model.transform_points()) {
    const auto ends = [&name = point](std::string_view end) { return name.ends_with(end); };
    const bool in = *transform && std::ranges::any_of(ways_in, ends);
    const bool out =
        (*transform && std::ranges::any_of(ways_out, ends)) || (experts_elsewhere && ends(of_experts));
    if (!in && !out) continue;
    const std::int64_t block = block_of(point).value_or(embeddings);
    (in ? forward_ : backward_).insert(block);
    Transform wrapped =
        in ? calling_after_forward(*transform, then) : calling_after_backward(*transform, then);
    replaced_.emplace_back(transform, std::exchange(*transform, std::move(wrapped)));
  }
}

FirstExchanges::~FirstExchanges() {
  for (auto& [transform, before] : replaced_) *transform = std::move(before);
}

}  // namespace nemocube
