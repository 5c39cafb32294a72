#pragma once
#include <string>

namespace nemocube {

/// What the launcher says about this process, before anything is started.
struct Launch {
  int rank = 0;
  int size = 1;          ///< ranks of the job; 1 without a launcher
  std::string variable;  ///< the environment variable that gives the size; empty without a launcher
};

/// Reads the variables of mpirun (Open MPI), of PMI, and of Slurm's srun --mpi=pmix. Throws Error naming the
/// variable when a number is not what it must be.
Launch read_launch();

}  // namespace nemocube
