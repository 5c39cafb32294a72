#include <doctest/doctest.h>

#include <algorithm>

#include "parallel/schedule/csv.h"
#include "parallel/schedule/schedules.h"
#include "tests/bad_input/refused.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ProcessResult plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {program(), "plan"});
  return run_process(arguments);
}

}  // namespace

TEST_CASE("plan: one row for each pipeline rank on standard output, the summary on standard error") {
  const auto run =
      plan({"--schedule", "interleaved1f1b", "--pp", "4", "--chunks", "2", "--microbatches", "8"});
  REQUIRE(run.exit_code == 0);
  CHECK(std::ranges::count(run.out, '\n') == 4);
  CHECK(parse_schedule_csv(run.out, "output") == make_schedule(ScheduleKind::interleaved_1f1b, 4, 2, 8));
  CHECK(run.err ==
        "interleaved1f1b on 4 ranks of 2 stages, 8 microbatches: 57 time units (F 1, B 2, I 1, W 1), "
        "ranks "
        "idle for 15.8 % of them (bubble); at most 11 live activations on one rank\n");
}

TEST_CASE("plan: PyTorch's class names; the number of chunks follows from the schedule") {
  const auto run = plan({"--schedule", "Schedule1F1B", "--pp", "2", "--microbatches", "2"});
  CHECK(run.out == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n");
  CHECK(plan({"--schedule", "ScheduleZBVZeroBubble", "--pp", "1", "--microbatches", "1"}).out ==
        "0F0,1F0,1I0,1W0,0I0,0W0\n");
}

TEST_CASE("plan: mistakes end with exit code 2 and what is wrong") {
  const TestDir dir;
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases{
      {{}, {"plan: give a recipe and --ranks, or --schedule"}},
      {{"--schedule", "1f1b", "--pp", "2"}, {"plan: --schedule wants --pp and --microbatches"}},
      {{"--schedule", "zigzag", "--pp", "2", "--microbatches", "4"}, {"'zigzag'", "interleavedzerobubble"}},
      {{"--schedule", "zbv", "--pp", "2", "--chunks", "3", "--microbatches", "4"}, {"3 stages", "exactly 2"}},
      {{"--schedule", "gpipe", "--pp", "0", "--microbatches", "4"}, {"pp is 0"}},
      {{"--schedule", "gpipe", "--pp", "2", "--microbatches", "-1"}, {"-1 microbatches"}},
      {{"--schedule", "gpipe", "--pp", "2", "--microbatches", "999999999"},
       {"a table of 2 rows and at least 2000000000 columns"}},
      {{"--schedule", "gpipe", "--pp", "1000000", "--microbatches", "1"},
       {"a table of 1000000 rows and at least 1000002 columns", "want at most 2097152 cells"}},
      {{"--schedule", "1f1b", "--pp", "1", "--microbatches", "8000000"}, {"want at most 2097152 cells"}},
      {{"--schedule", "zbv", "--pp", "9000000000000000000", "--microbatches", "9000000000000000000"},
       {"want at most 2097152 cells"}},
  };
  for (auto [arguments, parts] : cases) {
    CAPTURE(parts.front());
    arguments.insert(arguments.begin(), "plan");
    check_refused(dir.path(), arguments, parts);
  }
}

TEST_CASE("plan: says whether the shipped recipe for nodes fits on GPUs of 80 GB, which need not be there") {
  const auto said = [](const char* ranks, const char* gpu) {
    const ProcessResult run =
        plan({source_path("configs/recipes/nemotron_3_nano_nodes.yaml"), "--ranks", ranks, "--gpu", gpu,
              "--set", "model.pretrained_model_name_or_path=" + source_path("configs/nemotron_3_nano")});
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const std::size_t line = run.out.find("\nmemory  ");
    REQUIRE(line != std::string::npos);
    return run.out.substr(line + 9, run.out.find('\n', line + 1) - line - 9);
  };
  const std::string node = said("8", "h100-80");
  CAPTURE(node);
  CHECK(node.starts_with("it fits on an h100-80, with 485 MB (0.45 GiB) to spare: "));
  CHECK(node.find("its driver reports 84.9 GB (79.1 GiB)") != std::string::npos);
  CHECK(node.find("NCCL's buffers 4.33 GB (4.03 GiB)") != std::string::npos);
  CHECK(node.find("a rank needs about 77.9 GB (72.5 GiB)") != std::string::npos);
  CHECK(said("16", "h100").starts_with("it fits on an h100, with "));
  CHECK(said("8", "h200").starts_with("it fits on an h200, with "));
}
