#pragma once
#include <string>

namespace nemocube {

/// The end of a process that failed: writes "error: TEXT" and, where MPI runs in the
/// process, ends all ranks. Returns `exit_code` where only this process is to end.
/// `ends_job`: end the job although MPI does not run yet.
///
/// A failure that ends the job is written by the first rank of a node that has one, because a failed
/// collective fails on several ranks at once. Later nodes give earlier ones time to end the job first. Before
/// MPI runs, ranks fail for themselves. When ranks of one command have the same text, the first rank of a
/// node writes it. Commands that a script starts one after another under one mpirun do not share texts.
int report_failure(const std::string& text, int exit_code, bool ends_job = false);

}  // namespace nemocube
