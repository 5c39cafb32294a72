#pragma once
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace nemocube::testing {

/// mpirun and its options for `ranks` ranks on this machine, of one thread each, with more ranks than cores and as
/// root allowed. The program and its arguments follow; or, after ":", further ranks with other arguments.
inline std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& program) {
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  std::vector<std::string> command{NEMOCUBE_MPIRUN, "--oversubscribe",    "--bind-to", "none",
                                   "-np",           std::to_string(ranks)};
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

}  // namespace nemocube::testing
