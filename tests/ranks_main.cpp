#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "model/test_models.h"
#include "parallel/comm/failure.h"
#include "tests/support/ranks.h"
#include "train/loop/plan_model.h"
#include "train/step/train_step.h"

// test_comm: tests that run on several ranks, under mpirun; without it, on one. `test_comm --fault NAME` instead
// lets one rank fail, for parallel/comm/failure_test.cpp.

namespace {

using namespace nemocube;

World* world = nullptr;

void run_tests(World& ranks, int argc, char** argv) {
  world = &ranks;
  // A rank that leaves a test early lets the others wait, which ends the program after this time.
  ranks.set_options({.timeout_seconds = 60});
  doctest::Context context(argc, argv);
  context.setOption("no-colors", true);
  if (ranks.rank() > 0) context.setOption("minimal", true);  // rank 0 writes the summary, others what failed
  require(context.run() == 0, "a test failed");
}

// The last of four ranks, in the second stage of a pipeline with experts on two ranks, does not know the kernel that it
// is to run for attention. It finds out in the middle of the second step.
void throw_in_step(World& ranks) {
  const NemotronHConfig config = nemocube::testing::tiny_config();
  DistributedSection section;
  section.pp_size = section.ep_size = 2;
  section.pipeline.emplace();
  const ParallelPlan plan = plan_model(section, {.dispatcher = DispatcherKind::alltoall},
                                       plan_ranks(section, ranks.size()), config);
  const ProcessGroups groups(ranks, make_grid(plan.grid));
  NemotronH model(config, DType::f32, Device::meta, part_of(plan, config, place_of(plan.grid, ranks.rank())));
  ParallelModel parallel(model, plan, groups, Device::cpu);
  initialise(model, 1);
  parallel.data().spread_values();
  Optimizer optimizer(model.parameters(), {.kind = OptimizerKind::sgd});
  const auto batch = nemocube::testing::random_batch(config, {9, 4}, 2);
  const std::vector<TokenBatch> microbatches(4, TokenBatch{batch.ids, batch.labels, batch.sequences});
  KernelChoice kernels;
  for (int step = 0; step < 2; ++step) {
    if (step == 1 && ranks.rank() == ranks.size() - 1) kernels.by_op["attention"] = "unknown";
    StepOptions options;
    options.kernels = &kernels;
    options.parallel = &parallel;
    train_step(model, optimizer, microbatches, options);
  }
}

void fail_on_purpose(World& ranks, std::string_view fault) {
  using namespace std::chrono_literals;
  Communicator& all = ranks.communicator();
  const Tensor t = Tensor::zeros({1000000}, DType::f32, Device::cpu),
               few = Tensor::zeros({3}, DType::f32, Device::cpu);
  const bool last = ranks.rank() == ranks.size() - 1;
  all.barrier();
  if (fault == "throw") {
    // One rank waits in a collective, one computes, and the last has started what the others have not.
    Work work;
    if (last) work = all.start_all_reduce(t);
    if (last) fail("no such thing: 'x'");
    if (ranks.rank() == 0) all.all_reduce(t);
    for (;;) std::this_thread::sleep_for(1ms);
  } else if (fault == "all throw") {
    fail("the same on all ranks");
  } else if (fault == "kill") {
    if (last) std::raise(SIGKILL);
    if (ranks.rank() == 0) all.all_reduce(t);
    for (;;) std::this_thread::sleep_for(1ms);
  } else if (fault == "skip") {
    ranks.set_options({.timeout_seconds = 0.5});
    all.all_reduce(few);
    if (last) std::this_thread::sleep_for(60s);  // computes
    all.all_reduce(t);
  } else if (fault == "differ") {
    ranks.set_options({.timeout_seconds = 20, .check_collectives = true});
    all.all_reduce(few);
    all.broadcast(last ? few.narrow(0, 0, 2) : few, 0);
  } else if (fault == "skip, checked") {
    ranks.set_options({.timeout_seconds = 20, .check_collectives = true});
    if (!last) all.all_reduce(few, Reduction::max);
    all.barrier();
  } else if (fault == "sizes") {
    const Tensor other = Tensor::zeros({1000000}, DType::f32, Device::cpu);
    if (ranks.rank() == 0) all.exchange({{few, 1}}, {});
    if (ranks.rank() == 1) all.exchange({}, {{other, 0}});
    all.barrier();
  } else if (fault == "late") {  // no fault: rank 0 works alone for longer than the limit, and says so
    ranks.set_options({.timeout_seconds = 0.2});
    const WatchdogPause pause(ranks);
    if (ranks.rank() == 0) std::this_thread::sleep_for(600ms);
    all.barrier();
  } else if (fault == "throw in step") {
    throw_in_step(ranks);
  } else {
    fail("unknown fault '", fault, "'");
  }
}

}  // namespace

World& nemocube::testing::test_world() { return *world; }

int main(int argc, char** argv) {
  try {
    const Launch launch = read_launch();
    set_log_rank(launch.rank, launch.size);
    World ranks(launch);
    if (argc > 2 && std::string_view(argv[1]) == "--fault")
      fail_on_purpose(ranks, argv[2]);
    else
      run_tests(ranks, argc, argv);
    return 0;
  } catch (const std::exception& e) {
    return report_failure(e.what(), 2);
  }
}
