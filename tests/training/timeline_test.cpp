#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/cuda_programs.h"
#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Every kernel takes 20 us and the host nothing, so that a pipeline is what its schedule makes of it.
constexpr const char* even_rates = R"(kernel_seconds 20e-6
launch 0
product_call 0
exchange_call 0
copy_call 0
event 0
timed_event 0
memory_call 0
nvlink_seconds 1e-6
scale 0 0 kernel
scale 0 0 cublas
scale 0 0 cuda
)";

bool has_software_gpu() {
  if (cuda::backend_missing().empty() && std::filesystem::exists(emulator_libraries() / "libcudart.so.13"))
    return true;
  MESSAGE("timelines were not estimated: this build has no CUDA backend, or make emulator has not run");
  return false;
}

}  // namespace

// On the software GPU, also where the test itself runs on none.
TEST_CASE("timeline: bench step estimates a pipeline of two ranks, whose bubble is that of its schedule" *
          doctest::test_suite("cuda")) {
  if (!has_software_gpu()) return;
  ::setenv("CUDA_EMULATOR_LIBRARIES", emulator_libraries().c_str(), 1);
  const TestDir dir;
  spit(dir / "rates", even_rates);
  std::vector<std::string> words{(source_dir() / "tools" / "cuda_emulator" / "run").string(),
                                 "--no-check",
                                 "--devices",
                                 "2",
                                 "--timeline",
                                 (dir / "trace.json").string(),
                                 "--rates",
                                 (dir / "rates").string()};
  for (const std::string& word :
       mpirun(2, {program(), "bench", "step", "--config",
                  (source_dir() / "configs" / "nemotron_h_tiny").string(), "--device", "cuda", "--batch", "4",
                  "--microbatches", "4", "--seq", "16", "--steps", "2", "--json", "--set",
                  "distributed.pp_size=2"}))
    words.push_back(word);
  const ProcessResult run = run_process(words, dir.path());
  CAPTURE(run.out);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.out.find("estimated for GPUs") != std::string::npos);
  CHECK(run.err.find("cuda_emulator: timeline, estimated:") != std::string::npos);

  const Json step = parse_json(run.out.substr(run.out.rfind("\n{") + 1), "the last line of bench step"),
             timeline = step.at("timeline");
  const double seconds = timeline.at("seconds"), exposed = timeline.at("exposed_seconds"),
               least = timeline.at("least_exposed_seconds");
  CHECK(seconds > 0);
  CHECK(exposed < seconds / 10);
  CHECK(least <= exposed + 1e-9);
  REQUIRE(timeline.at("ranks").size() == 2);
  for (const Json& rank : timeline.at("ranks")) {
    double sum = 0;
    for (const char* what : {"computing", "communicating", "waiting", "copying", "host"})
      sum += rank.at(cat(what, "_seconds")).get<double>();
    CHECK(sum == doctest::Approx(seconds));
    CHECK(rank.at("forward_seconds") > 0);
    CHECK(rank.at("backward_seconds") > rank.at("forward_seconds"));
  }
  const Json bubble = timeline.at("bubble");
  CHECK(bubble.at("share_of_schedule") > 0.1);
  CHECK(std::abs(bubble.at("share").get<double>() - bubble.at("share_of_schedule").get<double>()) <= 0.02);

  std::set<std::string> processes, ranges;
  bool critical = false, sends = false;
  const Json trace = read_json_file(dir / "trace.json");
  for (const Json& event : trace.at("traceEvents")) {
    const Json& arguments = event.at("args");
    if (event.at("ph") == "M" && event.at("name") == "process_name") processes.insert(arguments.at("name"));
    if (arguments.contains("range")) ranges.insert(arguments.at("range"));
    critical |= arguments.contains("critical");
    sends |= event.at("name").get<std::string>().starts_with("Send of");
  }
  CHECK(processes == std::set<std::string>{"critical path", "rank 0, device 0", "rank 0, host",
                                           "rank 1, device 1", "rank 1, host"});
  CHECK(ranges.contains("step/forward > rmsnorm/forward"));
  CHECK(ranges.contains("step/backward > ssd_scan/backward"));
  CHECK(critical);
  CHECK(sends);
}
