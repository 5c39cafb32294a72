#include "parallel/data_parallel/gradient_parts.h"

#include <algorithm>

namespace nemocube {
GradientParts::GradientParts(const std::vector<Parameter*>& parameters, const GradientSourceOf& source_of) {
  for (Parameter* p : parameters) {
    if (!p->wants_grad()) continue;
    GradientSource source = source_of(*p);
    if (!source.parts || source.parts->size() == 1 || source.elements.empty()) continue;
    auto group = std::ranges::find(groups_, source.parts, &PartsGroup::ranks);
    if (group == groups_.end()) group = groups_.insert(group, {source.parts, {}});
    group->pieces.push_back({p->node.get(), std::move(source.elements)});
  }
}

std::vector<GradientParts::Sum> GradientParts::start() const {
  std::vector<Sum> sums;
  for (const PartsGroup& group : groups_) {
    std::vector<Tensor> places;
    std::int64_t elements = 0;
    for (const Piece& piece : group.pieces) {
      const Tensor gradient = piece.node->grad().reshape({-1});
      for (const Range& range : piece.elements) {
        places.push_back(gradient.narrow(0, range.begin, range.size()));
        elements += range.size();
      }
    }
    const Tensor message = Tensor::empty({elements}, places.front().dtype(), places.front().device());
    std::int64_t at = 0;
    for (const Tensor& place : places) {
      message.narrow(0, at, place.numel()).copy_from(place);
      at += place.numel();
    }
    sums.push_back({group.ranks->start_all_reduce(message), message, std::move(places)});
  }
  return sums;
}

void GradientParts::Sum::finish() {
  work.wait();
  std::int64_t at = 0;
  for (const Tensor& place : places) {
    place.copy_from(message.narrow(0, at, place.numel()));
    at += place.numel();
  }
}

}  // namespace nemocube
