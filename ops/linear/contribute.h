#pragma once
#include <memory>

#include "core/autograd.h"

namespace nemocube {

/// Lets `write(Grad)` form one contribution to `node`'s gradient: straight into a leaf's buffer, else into a
/// new tensor (or window) that is then added. Nothing happens when `node` is null: no gradient is wanted.
template <class Write>
void contribute(const std::shared_ptr<GradNode>& node, Write&& write) {
  if (!node) return;
  if (node->leaf()) return write(node->into());
  const Tensor g = node->buffer();
  write(Grad{g, Into::set});
  node->add(g);
}

}  // namespace nemocube
