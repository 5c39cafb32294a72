#pragma once
#include <string>
#include <vector>

namespace nemocube::testing {

/// mpirun and its options for `ranks` ranks on this machine, of one thread each, with more ranks than cores and as
/// root allowed. The program and its arguments follow.
std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& program);

/// The same where the last rank runs another program, or the same one in another way ("env", "-C", ..). Not by ":", with
/// which the mpirun of Debian 13 crashes (open-mpi/ompi#13303): a shell looks at the rank's number and becomes the program.
std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& program,
                                const std::vector<std::string>& program_of_last_rank);

/// Sets what mpirun and its ranks find in the environment: leave to run as root; TCP by way of the loopback device, because on
/// some machines Open MPI 5 cannot connect ranks of one machine by another device; and a folder of this test program's own
/// for the directories of jobs.
void set_environment_of_mpirun();

/// 4 or 5: the release of the mpirun above, which is asked once.
int open_mpi_release();

}  // namespace nemocube::testing
