#pragma once
#include <cstdint>
#include <ostream>
#include <variant>
#include <vector>

#include "parallel/schedule/actions.h"
#include "parallel/schedule/simulate.h"

/// Which rank sends what to whom, and when: a schedule becomes a program for each rank.
namespace nemocube {

/// A tensor that goes from one rank to another.
struct Transfer {
  enum class Payload : std::uint8_t {
    activation,  ///< output of F(stage, microbatch), for the rank of stage + 1
    gradient,    ///< input gradient of B or I (stage, microbatch), for the rank of stage - 1
  };
  std::int64_t stage;  ///< that computes the tensor
  std::int64_t microbatch;
  Payload payload;
  std::int64_t from, to;  ///< ranks of the pipeline
  bool operator==(const Transfer&) const = default;
};
/// "output of stage 0 for microbatch 3 (rank 0 to 1)"
std::ostream& operator<<(std::ostream& out, const Transfer& transfer);

/// Sends and receives that a rank starts together and ends before its next item. Transfers with from == rank
/// are sends, the others receives. In ascending order of (stage, microbatch, activation before gradient), so
/// that two ranks that meet in an exchange list their common transfers in the same order.
using Exchange = std::vector<Transfer>;
using ProgramItem = std::variant<Action, Exchange>;
/// The work of one rank, one item after another.
using Program = std::vector<ProgramItem>;

/// The program of every rank: its actions, with exchanges between them.
///
/// Neighbouring stages on one rank need no transfer. Every other transfer happens at the time at which the
/// action that computes the tensor ends in the simulation. All transfers of a rank at one time are one
/// exchange, which stands before the first action of that rank that starts then or later. A sender thus sends
/// right after the action that computes the tensor, and a receiver has the tensor before the action that
/// needs it.
///
/// An exchange may block until every partner has come to its own exchange (rendezvous). All ranks go through
/// exchanges in the order of one clock, so no two ranks wait for each other.
///
/// pre: `simulation` is of `schedule`
std::vector<Program> make_programs(const Schedule& schedule, const Simulation& simulation);

/// True for the last item of a stage that uses weights in backward (B or I), and for the last one that writes
/// gradients (B or W). A B counts where it is both.
std::vector<bool> last_backward_passes(const Program& program);

/// Executes the programs of all ranks in thought. An exchange ends when, for each of its transfers, both
/// ranks are in an exchange that lists the transfer. Error when an action lacks an input that is computed on
/// another rank, and for a deadlock: the item at which every rank waits.
void check_rendezvous(const std::vector<Program>& programs);

}  // namespace nemocube
