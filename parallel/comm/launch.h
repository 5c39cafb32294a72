#pragma once
#include <string>

namespace nemocube {

/// What the launcher says about this process, before anything is started.
struct Launch {
  int rank = 0;
  int size = 1;          ///< ranks of the job; 1 without a launcher
  std::string variable;  ///< the environment variable that gives the size; empty without a launcher
  /// What asks all ranks to end with a checkpoint, where the launcher kills ranks at once when it is stopped itself: "kill -USR1
  /// 1234", with " on HOST" on another machine than the launcher's. Empty with other launchers. mpirun of Open MPI 5 (PRRTE)
  /// sends SIGTERM to the ranks when it gets SIGTERM, SIGINT or SIGHUP, and SIGKILL a quarter of a second later (seen with
  /// 5.0.7); no option gives them more time. It passes on SIGUSR1 and goes on.
  std::string stop_command;
};

/// Reads the variables of mpirun (Open MPI), of PMI, and of Slurm's srun --mpi=pmix. Throws Error naming the
/// variable when a number is not what it must be.
Launch read_launch();

}  // namespace nemocube
