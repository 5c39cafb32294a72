#include "parallel/data_parallel/gradient_parts.h"

#include <algorithm>

namespace nemocube {
GradientParts::GradientParts(const std::vector<Parameter*>& parameters, const GradientSourceOf& source_of) {
  for (Parameter* p : parameters) {
    if (!p->wants_grad()) continue;
    GradientSource source = source_of(*p);
    if (!source.parts || source.parts->size() == 1 || source.elements.empty()) continue;
    auto group = std::ranges::find(groups_, source.parts, &Group::ranks);
    if (group == groups_.end()) group = groups_.insert(group, {source.parts, {}});
    group->pieces.push_back({p->node.get(), std::move(source.elements)});
  }
}

void GradientParts::add() const {
  for (const Group& group : groups_) {
    std::vector<Tensor> parts;
    std::int64_t elements = 0;
    for (const Piece& piece : group.pieces) {
      const Tensor gradient = piece.node->grad().reshape({-1});
      for (const Range& range : piece.elements) {
        parts.push_back(gradient.narrow(0, range.begin, range.size()));
        elements += range.size();
      }
    }
    const Tensor message = Tensor::empty({elements}, parts.front().dtype(), parts.front().device());
    std::int64_t at = 0;
    for (const Tensor& part : parts) {
      message.narrow(0, at, part.numel()).copy_from(part);
      at += part.numel();
    }
    group.ranks->all_reduce(message);
    at = 0;
    for (const Tensor& part : parts) {
      part.copy_from(message.narrow(0, at, part.numel()));
      at += part.numel();
    }
  }
}

}  // namespace nemocube
