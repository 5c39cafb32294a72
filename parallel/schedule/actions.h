#pragma once
#include <cstdint>
#include <vector>

namespace nemocube {

/// One piece of work of a training step.
struct Action {
  enum class Kind : std::uint8_t {
    forward,   ///< of one microbatch
    backward,  ///< of the same; on the last stage the loss comes first
  };
  Kind kind;
  std::size_t microbatch;
  bool operator==(const Action&) const = default;
};

/// The list of a process that has all blocks: F0 B0 F1 B1 ..., so that one microbatch is alive at a time.
std::vector<Action> sequential_actions(std::size_t microbatches);

}  // namespace nemocube
