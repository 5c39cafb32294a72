#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/check_trace.h"
#include "tests/support/cuda_programs.h"
#include "tests/support/mpirun.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// nemocube train --profile

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Events = std::vector<TraceEvent>;

constexpr std::int64_t device_row = 3;  // the first one of a CUDA device

template <class T>
std::vector<T> plus(std::vector<T> all, const std::type_identity_t<std::vector<T>>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Words profiled(const std::string& steps, const Words& overrides) {
  return plus(RunDir::train_command(overrides), {"--profile", steps});
}

// Steps 2 to 4 contain a validation, and the checkpoint after step 3.
const Words short_run{"step_scheduler.max_steps=6", "step_scheduler.ckpt_every_steps=4", "lr_scheduler=null"};

std::set<std::string> categories(const Events& events) {
  std::set<std::string> found;
  for (const TraceEvent& e : events) found.insert(e.category);
  return found;
}

Events of(const Events& events, const std::string& category, std::int64_t rank = 0) {
  Events found;
  std::ranges::copy_if(events, std::back_inserter(found),
                       [&](const TraceEvent& e) { return e.category == category && e.rank == rank; });
  return found;
}

std::int64_t count_named(const Events& events, const std::string& start) {
  return std::ranges::count_if(events, [&](const TraceEvent& e) { return e.name.starts_with(start); });
}

/// Whether an event of `inner` lies within one of `outer`.
bool all_within(const Events& inner, const Events& outer) {
  return std::ranges::all_of(inner, [&](const TraceEvent& e) {
    return std::ranges::any_of(outer, [&](const TraceEvent& o) { return e.within(o); });
  });
}

/// What is done by the thread of a step, one after another, does not take longer than the step, and passes
/// and blocks lie in it.
void check_parts(const Events& events, std::int64_t rank, std::int64_t first, std::int64_t count) {
  const Events steps = of(events, "step", rank);
  REQUIRE(std::ssize(steps) == count);
  const Events passes = of(events, "pipeline", rank), data = of(events, "data", rank),
               updates = of(events, "optimizer", rank);
  for (std::int64_t i = 0; i < count; ++i) {
    const TraceEvent& step = steps[static_cast<std::size_t>(i)];
    CHECK(step.arguments == Json{{"step", first + i}});
    std::int64_t parts = 0, found = 0;
    for (const Events* all : {&passes, &data, &updates})
      for (const TraceEvent& e : *all)
        if (e.within(step) && (e.category != "optimizer" || e.name == "update")) {
          parts += e.end - e.begin;
          ++found;
        }
    CHECK(found > 3);
    CHECK(parts > 0);
    CHECK(parts <= step.end - step.begin);
  }
  CHECK(all_within(passes, steps));
  CHECK(all_within(data, steps));
  CHECK(all_within(updates, steps));
  CHECK(all_within(of(events, "backward", rank), passes));
}

Json read_trace(const fs::path& run, const std::string& steps) {
  return read_json_file(run / "profile" / cat("steps_", steps, ".json"));
}

}  // namespace

TEST_CASE("profile: a run of one rank has all parts of its steps, and the bits of a run without") {
  const RunDir dir;
  const ProcessResult run = run_process(profiled("steps=2-4", short_run), dir.path());
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.find("profile of steps 2-4: straight/profile/steps_2-4.json (open in ui.perfetto.dev)\n") !=
        std::string::npos);
  CHECK(run.err.find(" in the mean of 1 step before (") != std::string::npos);
  const Json trace = read_trace(dir / "straight", "2-4");
  const Events events = checked_events(trace);
  CHECK(categories(events) == std::set<std::string>{"step", "forward", "backward", "optimizer", "operation",
                                                    "pipeline", "data", "checkpoint", "validation"});
  check_parts(events, 0, 2, 3);
  const Events passes = of(events, "pipeline");
  CHECK(count_named(passes, "forward") == 2 * 3);
  CHECK(count_named(passes, "backward") == 2 * 3);
  // Blocks of training and of validation, and what each consists of.
  const Events blocks = of(events, "forward"), backward = of(events, "backward"),
               operations = of(events, "operation");
  for (const char* name : {"mamba block 0", "moe block 1", "attention block 2", "mlp block 3", "loss"}) {
    CAPTURE(name);
    CHECK(count_named(backward, name) == 2 * 3);
    CHECK(count_named(blocks, name) > 2 * 3);
  }
  Events scans;
  std::ranges::copy_if(operations, std::back_inserter(scans),
                       [](const TraceEvent& e) { return e.name.starts_with("ssd_scan/"); });
  CHECK(count_named(scans, "ssd_scan/backward") == 2 * 3);
  CHECK(all_within(scans, plus(blocks, backward)));
  CHECK(of(events, "validation").size() == 2);  // after step 2, and after the checkpoint
  CHECK(of(events, "checkpoint").size() == 2);  // training waits while the checkpoint is written
  const Json& other = trace["otherData"];
  CHECK(other["steps"] == "2-4");
  CHECK(other["events"] == Json::array({events.size()}));
  CHECK(other["dropped_events"] == Json::array({0}));
  CHECK(other["collective_bytes"] == Json::array({0}));

  const ProcessResult plain = dir.train(plus(short_run, {"checkpoint.checkpoint_dir=plain"}));
  REQUIRE(plain.exit_code == 0);
  CHECK(repeatable(dir / "straight" / "training.jsonl") == repeatable(dir / "plain" / "training.jsonl"));
  CHECK(repeatable(dir / "straight" / "validation.jsonl") == repeatable(dir / "plain" / "validation.jsonl"));
  CHECK(differences(dir / "straight" / "epoch_0_step_5", dir / "plain" / "epoch_0_step_5") == "");
  CHECK_FALSE(fs::exists(dir / "plain" / "profile"));
}

TEST_CASE("profile: four ranks of a pipeline in one trace, with every collective and aligned clocks") {
  const RunDir dir;
  const Words grid =
      plus(short_run, {"distributed.pp_size=2", "distributed.ep_size=2",
                       "distributed.pipeline.pp_schedule=zbv", "distributed.pipeline.pp_microbatch_size=1"});
  const ProcessResult run = run_process(mpirun(4, profiled("steps=2-4", grid)), dir.path());
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.find("; clocks of ranks are known within ") != std::string::npos);
  const Json trace = read_trace(dir / "straight", "2-4");
  const Events events = checked_events(trace);
  const Json& other = trace["otherData"];
  CHECK(other["ranks"] == 4);
  std::int64_t first_begin = std::numeric_limits<std::int64_t>::max();
  // Of each sum over all ranks, by its number: the last begin and the first end.
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> sums;
  std::int64_t uncertainty = 0;
  for (std::size_t r = 0; r < 4; ++r) {
    const auto rank = static_cast<std::int64_t>(r);
    CAPTURE(rank);
    Events own;
    std::ranges::copy_if(events, std::back_inserter(own),
                         [&](const TraceEvent& e) { return e.rank == rank; });
    CHECK(categories(own) == std::set<std::string>{"step", "forward", "backward", "optimizer", "operation",
                                                   "collective", "pipeline", "data", "checkpoint",
                                                   "validation"});
    CHECK(other["events"][r] == own.size());
    CHECK(other["dropped_events"][r] == 0);
    check_parts(own, rank, 2, 3);
    // Two microbatches through two chunks of each rank; the last stages do their backward passes in two
    // parts, or at once.
    const Events passes = of(own, "pipeline", rank);
    CHECK(count_named(passes, "forward") == 2 * 2 * 3);
    CHECK(count_named(passes, "backward") - count_named(passes, "backward weight") == 2 * 2 * 3);
    CHECK(count_named(passes, "backward weight") == count_named(passes, "backward input"));
    std::map<std::pair<std::int64_t, std::int64_t>, int> of_chunk;
    for (const TraceEvent& e : passes)
      if (e.name == "forward") ++of_chunk[{e.arguments["microbatch"], e.arguments["chunk"]}];
    CHECK(of_chunk == std::map<std::pair<std::int64_t, std::int64_t>, int>{
                          {{0, 0}, 3}, {{0, 1}, 3}, {{1, 0}, 3}, {{1, 1}, 3}});
    std::int64_t bytes = 0;
    for (const TraceEvent& e : of(own, "collective", rank)) {
      bytes += e.arguments["bytes"].get<std::int64_t>();
      CHECK(e.arguments["waiting_seconds"].get<double>() * 1e9 <= static_cast<double>(e.end - e.begin) + 1);
      if (e.arguments["group"] != "world" || e.name != "all_reduce") continue;
      auto& [begin, end] = sums.try_emplace(e.arguments["number"].get<std::int64_t>(), 0,
                                            std::numeric_limits<std::int64_t>::max())
                               .first->second;
      begin = std::max(begin, e.begin);
      end = std::min(end, e.end);
    }
    CHECK(bytes > 0);
    CHECK(other["collective_bytes"][r] == bytes);
    for (const TraceEvent& e : own) first_begin = std::min(first_begin, e.begin);
    // One machine has one steady clock.
    const double offset = other["clock_offset_seconds"][r], within = other["clock_uncertainty_seconds"][r];
    CHECK(std::abs(offset) <= within);
    CHECK((within > 0) == (rank > 0));
    uncertainty = std::max(uncertainty, static_cast<std::int64_t>(std::ceil(within * 1e9)));
  }
  CHECK(first_begin == 0);
  // No rank has the result before every rank has come.
  CHECK(sums.size() >= 3);
  for (const auto& [number, times] : sums) {
    CAPTURE(number);
    CHECK(times.first <= times.second + 2 * uncertainty);
  }

  const ProcessResult plain = run_process(
      mpirun(4, RunDir::train_command(plus(grid, {"checkpoint.checkpoint_dir=plain"}))), dir.path());
  REQUIRE(plain.exit_code == 0);
  CHECK(repeatable(dir / "straight" / "training.jsonl") == repeatable(dir / "plain" / "training.jsonl"));
  CHECK(differences(dir / "straight" / "epoch_0_step_5", dir / "plain" / "epoch_0_step_5") == "");
}

TEST_CASE("profile: ranges that are none, and steps that a run never reaches") {
  const RunDir dir;
  const auto message = [&](const Words& words) {
    const ProcessResult refused = run_process(words, dir.path());
    CHECK(refused.exit_code == 2);
    return refused.err;
  };
  CHECK(message(profiled("steps=9-5", {}))
            .find("--profile steps=9-5: the first step 9 is behind the last one, 5") != std::string::npos);
  CHECK(message(profiled("", {})).find("--profile: want steps=A-B") != std::string::npos);
  CHECK_FALSE(fs::exists(dir / "straight"));

  const Words run = plus(short_run, {"checkpoint.enabled=false", "step_scheduler.max_steps=3"});
  const ProcessResult partly = run_process(profiled("steps=1-7", run), dir.path());
  CAPTURE(partly.err);
  REQUIRE(partly.exit_code == 0);
  CHECK(partly.err.find("--profile steps=1-7: this start does steps 0 to 2; the profile will end there\n") !=
        std::string::npos);
  CHECK(partly.err.find("--profile steps=1-7: the run ended after step 2\n") != std::string::npos);
  CHECK(partly.err.find("profile of steps 1-2: straight/profile/steps_1-2.json") != std::string::npos);
  CHECK(partly.err.find("and none before it can be compared") != std::string::npos);
  check_parts(checked_events(read_trace(dir / "straight", "1-2")), 0, 1, 2);

  const ProcessResult never = run_process(profiled("steps=3-7", run), dir.path());
  REQUIRE(never.exit_code == 0);
  const auto warned =
      never.err.find("--profile steps=3-7: this start does steps 0 to 2, so there will be no profile\n");
  CHECK(warned < never.err.find("step 0/3"));
  CHECK(never.err.find("--profile steps=3-7: this start did none of these steps, so there is no profile\n") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(dir / "straight" / "profile" / "steps_3-7.json"));
}

TEST_CASE("profile: a resumed run profiles the steps that are left") {
  const RunDir dir;
  const Words run{"step_scheduler.max_steps=6", "step_scheduler.ckpt_every_steps=2", "lr_scheduler=null"};
  REQUIRE(dir.train(run).exit_code == 0);
  const ProcessResult again =
      run_process(profiled("steps=2-5", plus(run, {"checkpoint.restore_from=epoch_0_step_3"})), dir.path());
  CAPTURE(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(again.err.find("--profile steps=2-5: this start begins with step 4\n") != std::string::npos);
  check_parts(checked_events(read_trace(dir / "straight", "4-5")), 0, 4, 2);
}

TEST_CASE("profile: a full disk costs the profile and not the run") {
  const RunDir dir;
  Words limited{"sh", "-c", "ulimit -f 24; exec \"$0\" \"$@\""};
  const ProcessResult run = run_process(
      plus(limited, profiled("steps=1-2", plus(short_run, {"checkpoint.enabled=false"}))), dir.path());
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.find("warning: the profile of steps 1-2 is lost, the run goes on: "
                     "straight/profile/steps_1-2.json: cannot write: File too large") != std::string::npos);
  CHECK(read_jsonl(dir / "straight" / "training.jsonl").size() == 6);
  CHECK(fs::is_empty(dir / "straight" / "profile"));
}

TEST_CASE("profile: a signal within the steps leaves the profile of those that were done") {
  const RunDir dir;
  Process running(
      profiled("steps=1-90000", {"step_scheduler.max_steps=100000", "step_scheduler.num_epochs=100000",
                                 "step_scheduler.ckpt_every_steps=100000",
                                 "step_scheduler.val_every_steps=null", "lr_scheduler=null"}),
      dir.path());
  const fs::path log = dir / "straight" / "training.jsonl";
  const auto lines = [&] { return fs::exists(log) ? std::ranges::count(slurp(log), '\n') : 0; };
  for (int i = 0; i < 6000 && lines() < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  running.signal(SIGTERM);
  const ProcessResult ended = running.wait();
  CAPTURE(ended.err);
  CHECK(ended.exit_code == 128 + SIGTERM);
  const std::int64_t last = std::ssize(read_jsonl(log)) - 1;
  CHECK(last >= 2);
  CHECK(ended.err.find(cat("--profile steps=1-90000: the run ended after step ", last, "\n")) !=
        std::string::npos);
  check_parts(checked_events(read_trace(dir / "straight", cat("1-", last))), 0, 1, last);
}

TEST_CASE("profile: collectives of CUDA tensors have the bytes of the statistics" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  const RunDir dir;
  const Words run = profiled("steps=1-1", {"step_scheduler.max_steps=2", "lr_scheduler=null",
                                           "checkpoint.enabled=false", "step_scheduler.val_every_steps=null",
                                           "distributed.ep_size=2", "step_scheduler.local_batch_size=1"});
  const ProcessResult ended = run_process(
      mpirun(2, on_cuda(plus(run, {"--device", "cuda", "--share-device"}), {.seed = 2, .devices = 2})),
      dir.path());
  CAPTURE(ended.err);
  REQUIRE(ended.exit_code == 0);
  const Json trace = read_trace(dir / "straight", "1-1");
  const Events events = checked_events(trace);
  const bool nccl = ended.err.find("tensors travel by NCCL") != std::string::npos;
  for (std::size_t r = 0; r < 2; ++r) {
    std::int64_t bytes = 0, of_device = 0;
    for (const TraceEvent& e : of(events, "collective", static_cast<std::int64_t>(r))) {
      bytes += e.arguments["bytes"].get<std::int64_t>();
      of_device += e.row >= device_row;
    }
    CHECK(bytes > 0);
    CHECK(trace["otherData"]["collective_bytes"][r] == bytes);
    CHECK((of_device > 0) == nccl);
  }
}

TEST_CASE("profile: a CUDA device has rows beside those of the host, and a graph is one event" *
          doctest::test_suite("cuda")) {
  if (!has_cuda_for_programs()) return;
  for (const bool graphs : {false, true}) {
    CAPTURE(graphs);
    // With graphs step 0 runs without, and step 1 captures them.
    const int last = graphs ? 2 : 1;
    const std::string range = cat(last, "-", last);
    const RunDir dir;
    const Words run = plus(
        short_run, {cat("step_scheduler.max_steps=", last + 1), "checkpoint.enabled=false",
                    "step_scheduler.val_every_steps=null", cat("cuda_graphs=", graphs ? "true" : "false")});
    const ProcessResult ended =
        run_process(on_cuda(plus(profiled("steps=" + range, run), {"--device", "cuda"})), dir.path());
    CAPTURE(ended.err);
    REQUIRE(ended.exit_code == 0);
    const Json trace = read_trace(dir / "straight", range);
    const Events events = checked_events(trace);
    const Json& other = trace["otherData"];
    CHECK(other["cuda_graphs"] == graphs);
    const auto uncertainty = std::llround(other["device_clock_uncertainty_seconds"][0].get<double>() * 1e9);
    CHECK(uncertainty > 0);
    Events device, steps = of(events, "step");
    std::ranges::copy_if(events, std::back_inserter(device),
                         [](const TraceEvent& e) { return e.row >= device_row; });
    REQUIRE(!device.empty());
    REQUIRE(steps.size() == 1);
    for (const TraceEvent& e : device) {
      CHECK(e.category == "operation");
      // The host waits for the result of a step, whose work therefore lies in the step.
      CHECK(e.begin >= steps[0].begin - uncertainty);
      CHECK(e.end <= steps[0].end + uncertainty);
    }
    // Two microbatches and the update of the step.
    const std::int64_t launches = count_named(device, "step/cuda graph");
    CHECK(launches == (graphs ? 3 : 0));
    CHECK(count_named(device, "ssd_scan/backward") == (graphs ? 0 : 2));
    CHECK(count_named(of(events, "pipeline"), "forward") == (graphs ? 0 : 2));
  }
}
