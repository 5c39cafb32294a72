#pragma once
#include <cstdint>
#include <ostream>
#include <vector>

namespace nemocube {

/// One piece of work of a training step: one stage and one microbatch. The backward pass is
/// one action (B), or two: the input gradient (I), for which the stage before waits, and, at
/// any later time, the weight gradients (W).
struct Action {
  enum class Kind : std::uint8_t {
    forward,          ///< F
    backward,         ///< B; on the last stage the loss comes first, here and in I
    backward_input,   ///< I
    backward_weight,  ///< W
  };
  Kind kind;
  std::int64_t stage;  ///< 0 holds the embeddings, the last one the head
  std::int64_t microbatch;
  bool operator==(const Action&) const = default;
};

char letter_of(Action::Kind kind);                                  ///< 'F', 'B', 'I' or 'W'
std::ostream& operator<<(std::ostream& out, const Action& action);  ///< "4B1": stage, kind, microbatch

/// The actions of every pipeline rank, each list in the order of execution.
using Schedule = std::vector<std::vector<Action>>;

/// The list of a process that has all blocks as stage 0: F0 B0 F1 B1 ..., so that one microbatch is alive at
/// a time.
std::vector<Action> sequential_actions(std::int64_t microbatches);

/// The rank that holds each stage. Error for a stage that several ranks hold, for a missing stage below the
/// highest one, and for a rank without actions.
std::vector<std::int64_t> ranks_of_stages(const Schedule& schedule);

/// The highest microbatch of any action plus 1; 0 for a schedule without actions.
std::int64_t microbatch_count(const Schedule& schedule);

/// The schedule without the actions of microbatches `count`, `count` + 1, ..., in the same
/// order, for a short last batch of an epoch.
Schedule first_microbatches(Schedule schedule, std::int64_t count);

}  // namespace nemocube
