#pragma once
#include <functional>
#include <string>

#include "core/environment.h"

namespace nemocube {

/// The launcher's facts about this process, known before anything is started.
struct Launch {
  int rank = 0;
  int size = 1;          ///< ranks of the job; 1 without a launcher
  std::string variable;  ///< the environment variable that gives the size; empty without a launcher
  /// The subcommand and, a line for each, its options as they were given: "train", "--profile: steps=5-7".
  /// The text has to be the same on all ranks. It leaves out --set, whose effect is in the recipe, and
  /// arguments that are no options.
  std::string command;
  /// Of Open MPI, which passes SIGUSR1 on.
  bool by_mpirun() const { return variable == "OMPI_COMM_WORLD_SIZE"; }
  /// The command that asks all ranks to end with a checkpoint, for launchers that kill ranks at once when
  /// they are stopped themselves: "kill -USR1 1234", with " on HOST" on another machine than the launcher's.
  /// Empty with other launchers. mpirun of Open MPI 5 (PRRTE) sends SIGTERM to the ranks when it gets
  /// SIGTERM, SIGINT or SIGHUP, and SIGKILL a quarter of a second later (seen with 5.0.7); no option gives
  /// them more time. It passes on SIGUSR1 and goes on.
  std::string stop_command;
};

/// Reads the variables of mpirun (Open MPI), of PMI, and of Slurm's srun --mpi=pmix. Throws Error naming the
/// variable when its value is not a valid number.
Launch read_launch();

/// The value of a variable; null where the variable is not set.
using VariableLookup = std::function<const char*(KnownVariable)>;

/// Why a process that knows of no other rank must not train alone: a launcher has started several processes
/// without MPI, as torchrun does, and srun without --mpi=pmix. One sentence, which says how to start instead;
/// empty where the process was started alone. The sign of such a launcher is a variable with its number of
/// processes, or with a rank above 0. Only for processes for which read_launch() names no variable. A shell
/// that `srun --pty` has started is no rank.
std::string started_apart(const VariableLookup& variable);

}  // namespace nemocube
