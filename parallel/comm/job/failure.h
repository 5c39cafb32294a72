#pragma once
#include <string>

namespace nemocube {

/// The end of a process that failed: writes "error: TEXT" and, where MPI runs in the process, ends all ranks.
/// Returns `exit_code` when there is nothing else to end. `ends_job`: the job is to end although MPI does not
/// run yet.
///
/// A failure that ends the job is written by the first rank of a node that has one, because a failed
/// collective fails on several ranks at once. Later nodes give earlier ones time to end the job first. Before
/// MPI runs, ranks fail for themselves: of equal texts of one command's ranks the first of the node is
/// written, and each command that a script starts one after another under the same mpirun has its own.
int report_failure(const std::string& text, int exit_code, bool ends_job = false);

}  // namespace nemocube
