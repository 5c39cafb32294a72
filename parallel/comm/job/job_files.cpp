#include "parallel/comm/job/job_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/environment.h"
#include "core/error.h"

namespace nemocube {

bool create_job_file(const std::string& name) {
  const char *directory = environment_variable("PMIX_SERVER_TMPDIR"),
             *job = environment_variable("PMIX_NAMESPACE");
  if (!directory || !job) return true;
  const std::string path = cat(directory, "/nemocube.", job, ".", name);
  const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file >= 0) ::close(file);
  return file >= 0 || errno != EEXIST;
}

std::string rank_of_job() {
  const char* rank = environment_variable("PMIX_RANK");
  return rank ? rank : "0";
}

}  // namespace nemocube
