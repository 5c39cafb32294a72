#pragma once
#include <string>

namespace nemocube {

/// Files by which the processes of a job on one node know of each other, in the launcher's directory for the
/// job on that node (PMIx). The files are removed with the job.
///
/// Creates the empty file `name` of this job. False when it exists already. Without such a directory, true.
bool create_job_file(const std::string& name);

/// The number of this rank in names of job files.
std::string rank_of_job();

}  // namespace nemocube
