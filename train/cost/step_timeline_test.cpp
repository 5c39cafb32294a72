#include "train/cost/step_timeline.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "parallel/schedule/simulate.h"

using namespace nemocube;

namespace {

/// A device of a pipeline: so many seconds of forward and backward passes between two times.
std::string device(int rank, double forward, double backward, double begin, double end) {
  const auto range = [&](const char* name, double seconds, double from, double to) {
    return cat("\"", name, "\":{\"seconds\":", seconds, ",\"operations\":1,\"begin\":", from, ",\"end\":", to,
               "}");
  };
  return cat("{\"rank\":", rank, ",\"device\":0,\"computing\":", forward + backward,
             ",\"communicating\":1,\"waiting\":2,\"copying\":0,\"host\":3,\"ranges\":{",
             range("step/forward", forward / 2, begin, end), ",",
             range("step/forward > matmul", forward / 2, begin, end), ",",
             range("step/backward > matmul", backward, begin, end), ",", range("adamw/step", 50, 0, 1000),
             "}}");
}

std::string summary(const std::string& devices) {
  return cat(
      R"({"seconds":20,"exposed_seconds":2,"least_exposed_seconds":1,"incomplete_transfers":0,"critical":{},)",
      "\"devices\":[", devices, "]}");
}

PipelinePlan two_stages() {
  PipelinePlan plan;
  plan.stages = {ModelChunk{}, ModelChunk{}};
  plan.rank_of_stage = {0, 1};
  plan.kind = ScheduleKind::gpipe;
  return plan;
}

}  // namespace

TEST_CASE("step timeline: seconds of a step and of its devices") {
  const StepTimeline t = parse_step_timeline(summary(device(0, 4, 8, 1, 13)), {}, 1, 1);
  CHECK(t.seconds == 20);
  CHECK(t.exposed == 2);
  CHECK(t.least_exposed == 1);
  REQUIRE(t.ranks.size() == 1);
  CHECK(t.ranks[0].computing == 12);
  CHECK(t.ranks[0].forward == 4);
  CHECK(t.ranks[0].backward == 8);
  CHECK(t.ranks[0].host == 3);
  CHECK_FALSE(t.bubble);
  CHECK(to_string(t).find("of it communication exposes 2000.000; dependencies and rates allow no less than "
                          "1000.000") != std::string::npos);
}

TEST_CASE("step timeline: the bubble of a pipeline beside that of its schedule") {
  // Two equal stages, two microbatches, forward 1 and backward 2 each: 6 of 9 seconds of each rank.
  const StepTimeline even = parse_step_timeline(
      summary(cat(device(0, 2, 4, 0, 9), ",", device(1, 2, 4, 1, 9))), two_stages(), 2, 2);
  REQUIRE(even.bubble);
  CHECK(even.bubble->share == doctest::Approx(1.0 / 3));
  CHECK(even.bubble->of_schedule == doctest::Approx(1.0 / 3));
  // Ranks that wait longer than the schedule says: the passes take 12.
  const StepTimeline late = parse_step_timeline(
      summary(cat(device(0, 2, 4, 0, 12), ",", device(1, 2, 4, 1, 9))), two_stages(), 2, 2);
  CHECK(late.bubble->share == doctest::Approx(0.5));
  CHECK(late.bubble->of_schedule == doctest::Approx(1.0 / 3));
  // Two ranks for each stage.
  const std::string four = cat(device(0, 2, 4, 0, 9), ",", device(1, 2, 4, 0, 9), ",", device(2, 2, 4, 1, 9),
                               ",", device(3, 2, 4, 1, 9));
  CHECK(parse_step_timeline(summary(four), two_stages(), 2, 2).bubble->of_schedule ==
        doctest::Approx(1.0 / 3));
}

TEST_CASE("step timeline: the stages of a rank have times of their own") {
  PipelinePlan plan = two_stages();
  plan.stages.resize(4);
  plan.rank_of_stage = {0, 1, 0, 1};
  plan.kind = ScheduleKind::interleaved_1f1b;
  // The last stage takes three times as long as the others.
  const auto rank = [](double second) {
    const auto range = [](const char* name, double seconds) {
      return cat("\"", name, "\":{\"seconds\":", seconds, ",\"operations\":1,\"begin\":0,\"end\":40}");
    };
    return cat(
        R"({"rank":0,"device":0,"computing":1,"communicating":0,"waiting":0,"copying":0,"host":0,"ranges":{)",
        range("step/forward", 2), ",", range("step/backward > matmul", 4), ",",
        range("step/forward 1", 2 * second), ",", range("step/backward 1 > matmul", 4 * second), "}}");
  };
  const StepTimeline t = parse_step_timeline(summary(cat(rank(1), ",", rank(3))), plan, 2, 2);
  CHECK(t.ranks[1].chunks == std::vector<double>{6, 18});
  const std::vector<double> idle =
      simulate(plan.schedule(2, 2), {.forward = 1, .backward = 2, .stages = {2, 2, 2, 6}}).idle;
  CHECK(t.bubble->of_schedule == doctest::Approx((idle[0] + idle[1]) / 2));
  CHECK(t.bubble->share == doctest::Approx(1 - 36.0 / 80));
}

TEST_CASE("step timeline: what is no summary is refused") {
  CHECK_THROWS_WITH_AS(parse_step_timeline("{}", {}, 1, 1),
                       doctest::Contains("not a summary of the software GPU"), Error);
  CHECK_THROWS_WITH_AS(parse_step_timeline(summary(device(0, 1, 1, 0, 2)), two_stages(), 2, 1),
                       doctest::Contains("want records of the ranks of 2 stages, got 1"), Error);
}
