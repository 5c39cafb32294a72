#include "parallel/schedule/actions.h"

namespace nemocube {

std::vector<Action> sequential_actions(std::size_t microbatches) {
  std::vector<Action> actions;
  for (std::size_t m = 0; m < microbatches; ++m) {
    actions.push_back({Action::Kind::forward, m});
    actions.push_back({Action::Kind::backward, m});
  }
  return actions;
}

}  // namespace nemocube
