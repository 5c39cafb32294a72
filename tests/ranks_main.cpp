#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"
#include "model/test_models.h"
#include "parallel/comm/job/failure.h"
#include "tests/support/devices.h"
#include "tests/support/ranks.h"
#include "train/device/device_of_rank.h"
#include "train/ranks/plan_model.h"
#include "train/step/train_step.h"

// test_comm: tests that run on several ranks, under mpirun; without it, on one. `test_comm --fault NAME`
// instead lets one rank fail, for parallel/comm/job/failure_test.cpp.

namespace {

using namespace nemocube;

World* world = nullptr;

void run_tests(World& ranks, int argc, char** argv) {
  world = &ranks;
  // Ranks that each have a CUDA device of their own use NCCL from here on; those that share one do not.
  if (std::getenv("NEMOCUBE_TEST_CUDA") && nemocube::testing::has_cuda())
    nemocube::testing::use_cuda_device(device_of_rank(Device::cuda, ranks, {.shared = true}));
  // A rank that leaves a test early lets the others wait, which ends the program after this time.
  ranks.set_options({.timeout_seconds = 60});
  doctest::Context context(argc, argv);
  context.setOption("no-colors", true);
  if (ranks.rank() > 0) {  // rank 0 writes the summary, others what failed
    context.setOption("minimal", true);
    context.setOption("duration", false);
  }
  require(context.run() == 0, "a test failed");
}

// The last of four ranks, in the second stage of a pipeline with experts on two ranks, does not know the
// kernel that it is to run for attention. It finds out in the middle of the second step.
void throw_in_step(World& ranks) {
  const ModelConfig config = nemocube::testing::tiny_config();
  DistributedSection section;
  section.pp_size = section.ep_size = 2;
  section.pipeline.emplace();
  const ParallelPlan plan = plan_model(section, {.dispatcher = DispatcherKind::alltoall},
                                       rank_sizes(section, ranks.size()), config);
  const ProcessGroups groups(ranks, make_grid(plan.grid));
  Stack model(config, DType::f32, Device::meta, part_of(plan, config, place_of(plan.grid, ranks.rank())));
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
    train_step(parallel, optimizer, microbatches, options);
  }
}

// All ranks but the last call an operation with `few` elements for each rank, the last with `many`. What lies
// behind the memory of the results must stay as it is.
void call_with_other_sizes(World& ranks, const std::string& operation, std::int64_t few, std::int64_t many) {
  Communicator& all = ranks.communicator();
  const std::int64_t size = ranks.size(), count = ranks.rank() == size - 1 ? many : few;
  const Tensor memory = Tensor::empty({size * (few + many)}, DType::f32, Device::cpu);
  memory.fill(-7);
  const auto first = [](const Tensor& t, std::int64_t n) { return t.narrow(0, 0, n); };
  const Tensor in = Tensor::zeros({size * count}, DType::f32, Device::cpu);
  const std::int64_t results = operation == "all_gather" || operation == "all_to_all" ? size * count : count;
  const Tensor out = first(memory, results);
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(size), count);
  try {
    if (operation == "all_reduce") all.all_reduce(out);
    if (operation == "all_gather") all.all_gather(out, first(in, count));
    if (operation == "reduce_scatter") all.reduce_scatter(out, in);
    if (operation == "broadcast") all.broadcast(out, static_cast<int>(size) - 1);
    if (operation == "all_to_all") all.all_to_all_v(out, rows, in, rows);
    if (operation == "exchange") {
      const int next = static_cast<int>((ranks.rank() + 1) % size),
                previous = static_cast<int>((ranks.rank() + size - 1) % size);
      all.exchange({{first(in, count), next}}, {{out, previous}});
    }
    all.host_barrier();
  } catch (const Error&) {
    const float* data = memory.data<float>();
    require(std::all_of(data + results, data + memory.numel(), [](float x) { return x == -7; }),
            "memory behind the result was written");
    throw;
  }
}

// All ranks launch a graph of two collectives, and all but the last launch it again.
void leave_others_in_graph(World& ranks, const Tensor& t, const std::function<void()>& leave) {
  const auto graph = cuda::capture_graph([&] {
    ranks.communicator().all_reduce(t);
    ranks.communicator().all_reduce(t);
  });
  graph->launch();
  cuda::synchronize();
  ranks.communicator().host_barrier();
  if (ranks.rank() == ranks.size() - 1) leave();
  graph->launch();
  cuda::synchronize();
}

// "cuda: NAME" is the fault NAME with tensors on CUDA devices.
void fail_on_purpose(World& ranks, std::string_view fault) {
  using namespace std::chrono_literals;
  Device device = Device::cpu;
  if (constexpr std::string_view on_cuda = "cuda: "; fault.starts_with(on_cuda)) {
    fault.remove_prefix(on_cuda.size());
    device = device_of_rank(Device::cuda, ranks, {.shared = true});
  }
  Communicator& all = ranks.communicator();
  const Tensor t = Tensor::zeros({1000000}, DType::f32, device), few = Tensor::zeros({3}, DType::f32, device);
  const bool last = ranks.rank() == ranks.size() - 1;
  all.host_barrier();
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
  } else if (fault == "stop") {
    ranks.set_options({.timeout_seconds = 0.5});
    all.all_reduce(few);
    if (last) std::raise(SIGSTOP);
    all.all_reduce(t);
  } else if (fault == "skip a launch") {
    ranks.set_options({.timeout_seconds = 0.5});
    leave_others_in_graph(ranks, few, [] { std::this_thread::sleep_for(60s); });
  } else if (fault == "kill before a launch") {
    leave_others_in_graph(ranks, few, [] { std::raise(SIGKILL); });
  } else if (fault == "differ") {
    ranks.set_options({.timeout_seconds = 20, .check_collectives = true});
    all.all_reduce(few);
    all.broadcast(last ? few.narrow(0, 0, 2) : few, 0);
  } else if (fault == "differ, unchecked") {
    ranks.set_options({.timeout_seconds = 20});
    all.all_reduce(few);
    all.broadcast(last ? few.narrow(0, 0, 2) : few, 0);
  } else if (fault == "skip, checked") {
    ranks.set_options({.timeout_seconds = 20, .check_collectives = true});
    if (!last) all.all_reduce(few, Reduction::max);
    all.host_barrier();
  } else if (fault.starts_with("sizes ")) {
    std::istringstream words{std::string(fault)};
    std::string sizes, operation;
    std::int64_t smaller = 0, larger = 0;
    words >> sizes >> operation >> smaller >> larger;
    call_with_other_sizes(ranks, operation, smaller, larger);
  } else if (fault == "late") {  // no fault: rank 0 works alone for longer than the limit, and says so
    ranks.set_options({.timeout_seconds = 0.2});
    const StorageTime longer(ranks, 100'000'000);
    if (ranks.rank() == 0) std::this_thread::sleep_for(600ms);
    all.host_barrier();
  } else if (fault == "late, and longer than files take") {
    ranks.set_options({.timeout_seconds = 0.2});
    const StorageTime longer(ranks, 3'000'000);
    if (ranks.rank() == 0) std::this_thread::sleep_for(60s);
    all.host_barrier();
  } else if (fault == "stop before a group") {
    ranks.set_options({.timeout_seconds = 1});
    if (last) std::raise(SIGSTOP);
    const auto group = ranks.split("half", ranks.rank() % 2, 0);
  } else if (fault == "stop before the end") {
    ranks.set_options({.timeout_seconds = 1});
    if (last) std::raise(SIGSTOP);
  } else if (fault == "throw in step") {
    throw_in_step(ranks);
  } else {
    fail("unknown fault '", fault, "'");
  }
}

}  // namespace

World& nemocube::testing::test_world() { return *world; }

// Called before main: cases are registered there.
doctest::skip nemocube::testing::on_ranks(std::initializer_list<int> numbers) {
  const char* chosen = std::getenv("NEMOCUBE_RANKS");
  int ranks = 1;
  try {
    ranks = read_launch().size;
  } catch (const Error&) {  // main says what is wrong
  }
  return {!(chosen && chosen == std::string_view("all")) &&
          std::ranges::find(numbers, ranks) == numbers.end()};
}

int main(int argc, char** argv) {
  try {
    const Launch launch = read_launch();
    set_log_rank(launch.rank, launch.size);
    const std::string fault = argc > 2 ? argv[2] : "";
    CommOptions options;
    if (fault.ends_with("before the start")) {
      options.timeout_seconds = 1;
      if (launch.rank == launch.size - 1 && fault.starts_with("exit")) return 0;
      if (launch.rank == launch.size - 1) std::raise(SIGSTOP);
    }
    World ranks(launch, options);
    if (argc > 2 && std::string_view(argv[1]) == "--fault")
      fail_on_purpose(ranks, argv[2]);
    else
      run_tests(ranks, argc, argv);
    return 0;
  } catch (const std::exception& e) {
    return report_failure(e.what(), 2);
  }
}
