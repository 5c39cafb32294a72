#include "core/parallel_for.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/allocator.h"
#include "core/error.h"

namespace nemocube {

namespace {

// The C library loads its unwinder for the first pthread_exit, which OpenMP calls, and ends the program where
// there is no memory for that. So a thread that does nothing else comes first.
void load_unwinder() {
  pthread_t thread;
  const auto leave = [](void*) -> void* { ::pthread_exit(nullptr); };
  if (::pthread_create(&thread, nullptr, leave, nullptr) == 0) ::pthread_join(thread, nullptr);
}

}  // namespace

void check_threads_start(int threads) {
  static std::atomic<int> started = 1;
  if (threads <= started.load(std::memory_order_relaxed)) return;
  std::vector<std::thread> team;
  team.reserve(static_cast<std::size_t>(threads));
  std::string failure;
  {
    const CpuHeadroom headroom("the start of threads");
    load_unwinder();
    std::mutex gate;  // closed until all have started: as many stacks at once as the team will have
    gate.lock();
    try {
      while (static_cast<int>(team.size()) < threads - 1)
        team.emplace_back([&gate] { const std::lock_guard pass(gate); });
    } catch (const std::system_error& e) {
      failure = e.what();
    }
    gate.unlock();
    for (std::thread& thread : team) thread.join();
  }
  require(failure.empty(), "out of memory or of processes (ulimit -u): want ", threads,
          " threads (OMP_NUM_THREADS sets another number), ", team.size() + 1, " could be started: ", failure,
          "; ", memory_in_use());
  started = std::max(threads, started.load());
}

}  // namespace nemocube
