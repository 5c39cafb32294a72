#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// Faults of one rank of a grid in the middle of a step, while others wait for hidden states, tokens or parts
// of sums.

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

void sleep_ms(int count) { std::this_thread::sleep_for(std::chrono::milliseconds(count)); }

/// A run of four ranks without end, from its first step on.
class GridRun {
 public:
  explicit GridRun(const Words& distributed) : job_(command(distributed), dir_.path()) {
    for (int i = 0; i < 6000 && !fs::exists(dir_ / "run" / "training.jsonl"); ++i) sleep_ms(10);
    ranks_ = children_of(job_.pid());
  }

  /// Sends a signal to one rank, after a random time.
  void signal(std::size_t rank, int number) {
    REQUIRE(ranks_.size() == 4);
    const unsigned pause = std::random_device()() % 50;
    MESSAGE("signal ", number, " to rank ", rank, " after ", pause, " ms");
    sleep_ms(static_cast<int>(pause));
    sent_ = Clock::now();
    ::kill(ranks_[rank], number);
  }

  /// Waits for the end of the job; then no process of it is left.
  ProcessResult end(int within_seconds) {
    ProcessResult result = job_.wait();
    CAPTURE(result.err);
    CHECK(Clock::now() - sent_ < std::chrono::seconds(within_seconds));
    CHECK(result.exit_code != 0);
    for (const int pid : ranks_) {
      for (int i = 0; i < 500 && is_alive(pid); ++i) sleep_ms(10);
      CHECK_FALSE(is_alive(pid));
    }
    return result;
  }

 private:
  static Words command(const Words& distributed) {
    Words words{"step_scheduler.local_batch_size=1", "step_scheduler.max_steps=100000",
                "step_scheduler.num_epochs=10000",   "step_scheduler.val_every_steps=null",
                "checkpoint.enabled=false",          "checkpoint.checkpoint_dir=run",
                "dist_env.timeout_minutes=0.1"};
    words.insert(words.end(), distributed.begin(), distributed.end());
    return mpirun(4, RunDir::train_command(words));
  }

  RunDir dir_;
  Process job_;
  std::vector<int> ranks_;
  Clock::time_point sent_;
};

const Words pipeline_and_experts{"distributed.pp_size=2", "distributed.ep_size=2",
                                 "distributed.pipeline.pp_microbatch_size=1"};
const Words tensor_and_experts{"distributed.tp_size=2", "distributed.sequence_parallel=true",
                               "distributed.ep_size=2"};

}  // namespace

TEST_CASE("grid faults: when a rank is killed, all end soon with a message that names it") {
  std::size_t rank = 1;
  for (const Words& grid : {pipeline_and_experts, tensor_and_experts}) {
    GridRun run(grid);
    run.signal(rank, SIGKILL);
    const ProcessResult result = run.end(15);
    CAPTURE(result.err);
    CHECK(result.err.find(cat("process rank ", rank, " ")) != std::string::npos);
    CHECK(result.err.find("signal 9") != std::string::npos);
    rank = 2;
  }
}

TEST_CASE(
    "grid faults: the watchdog ends a job whose rank has stopped, and says who waits, where and for whom") {
  GridRun run(pipeline_and_experts);
  run.signal(3, SIGSTOP);
  const ProcessResult result = run.end(30);
  CAPTURE(result.err);
  CHECK(result.exit_code == 2);
  CHECK(result.err.find(" waited ") != std::string::npos);
  CHECK(result.err.find(" of group ") != std::string::npos);
  CHECK(result.err.find("has not come") != std::string::npos);
}

TEST_CASE("grid faults: a rank that throws in the middle of a step ends all with its message, once") {
  const auto start = Clock::now();
  const fs::path program = build_dir() / "test_comm";
  const ProcessResult run = run_process(mpirun(4, {program.string(), "--fault", "throw in step"}));
  CAPTURE(run.err);
  CHECK(run.exit_code == 2);
  CHECK(Clock::now() - start < std::chrono::seconds(15));
  const auto message = run.err.find("[rank 3] error: kernels.attention: no variant 'unknown'");
  CHECK(message != std::string::npos);
  CHECK(run.err.find("error: ", message + 16) == std::string::npos);
}
