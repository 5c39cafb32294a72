#pragma once
#include <string>
#include <vector>

namespace nemocube::testing {

/// mpirun and its options for `ranks` ranks on this machine, of one thread each, with more ranks than cores
/// and as root allowed. The program and its arguments follow.
std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& program);

/// The same where the last rank runs another program, or the same one in another way ("env", "-C", ..). A
/// shell looks at the rank's number and becomes the program. ":" would do, but the mpirun of Debian 13
/// crashes with it (open-mpi/ompi#13303).
std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& program,
                                const std::vector<std::string>& program_of_last_rank);

/// 4 or 5: the release of the mpirun above, which is asked once.
int open_mpi_release();

}  // namespace nemocube::testing
