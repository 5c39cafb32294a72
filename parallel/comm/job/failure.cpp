#include "parallel/comm/job/failure.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "core/rng.h"
#include "parallel/comm/job/job_files.h"
#include "parallel/comm/world.h"

namespace nemocube {
namespace {

using namespace std::chrono_literals;

// A failure of one rank that ends the job comes about on others as well. Otherwise each rank fails for
// itself, and the n-th failure of a rank with some text belongs to the n-th one of other ranks with that
// text.
bool first_of_node(const std::string& text, bool ends_job) {
  if (ends_job) return create_job_file("end");
  const std::string failure = cat("failure.", hash_name(text), ".");
  int number = 0;
  while (!create_job_file(cat(failure, number, ".of.", rank_of_job()))) ++number;
  return create_job_file(cat(failure, number));
}

}  // namespace

int report_failure(const std::string& text, int exit_code, bool ends_job) {
  ends_job = ends_job || World::running();
  if (ends_job) std::this_thread::sleep_for(100ms * std::min(World::node_of_process(), 20));
  if (first_of_node(text, ends_job)) {
    write_log(LogLevel::error, text);
    if (ends_job) std::this_thread::sleep_for(100ms);  // mpirun forwards the message before it writes its own
  } else if (ends_job) {
    std::this_thread::sleep_for(10s);  // the rank that was first ends this one
  }
  World::abort(exit_code);
  return exit_code;
}

}  // namespace nemocube
