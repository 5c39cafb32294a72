#include "parallel/comm/failure.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "parallel/comm/world.h"

namespace nemocube {
namespace {

using namespace std::chrono_literals;

// The launcher's directory for this job on this node goes with the job. One rank alone can create the file.
bool first_of_node() {
  const char *directory = std::getenv("PMIX_SERVER_TMPDIR"), *job = std::getenv("PMIX_NAMESPACE");
  if (!directory || !job) return true;
  const std::string path = cat(directory, "/nemocube.failure.", job);
  const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file >= 0) ::close(file);
  return file >= 0 || errno != EEXIST;
}

}  // namespace

int report_failure(const std::string& text, int exit_code) {
  const bool several = World::running();
  if (several) std::this_thread::sleep_for(100ms * std::min(World::node_of_process(), 20));
  if (first_of_node()) {
    write_log(LogLevel::error, text);
    if (several) std::this_thread::sleep_for(100ms);  // mpirun forwards the message before it writes its own
  } else if (several) {
    std::this_thread::sleep_for(10s);  // the rank that was first ends this one
  }
  World::abort(exit_code);
  return exit_code;
}

}  // namespace nemocube
