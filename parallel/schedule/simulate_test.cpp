#include "parallel/schedule/simulate.h"

#include <doctest/doctest.h>

#include "parallel/schedule/schedules.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
using Kind = Action::Kind;
using Spans = std::vector<TimeSpan>;
}  // namespace

TEST_CASE("simulate: start and end of every action, idle shares, live activations") {
  // rank 0: F0 F1 B0 B1, rank 1: F0 B0 F1 B1
  const Simulation s = simulate(make_schedule(ScheduleKind::one_f_one_b, 2, 1, 2));
  CHECK(s.times == std::vector{Spans{{0, 1}, {1, 2}, {4, 6}, {7, 9}}, Spans{{1, 2}, {2, 4}, {4, 5}, {5, 7}}});
  CHECK(s.makespan == 9);
  CHECK(s.idle == std::vector{1 - 6 / 9.0, 1 - 6 / 9.0});
  CHECK(s.live == std::vector<std::int64_t>{2, 1});
}

TEST_CASE("simulate: costs of kinds and stages; W waits for I alone") {
  const Schedule schedule{
      {{Kind::forward, 0, 0}, {Kind::backward_input, 0, 0}, {Kind::backward_weight, 0, 0}},
      {{Kind::forward, 1, 0}, {Kind::backward_input, 1, 0}, {Kind::backward_weight, 1, 0}}};
  const Simulation s = simulate(
      schedule,
      {.forward = 1, .backward = 100, .backward_input = 2, .backward_weight = 3, .stages = {1, 0.5}});
  CHECK(s.times == std::vector{Spans{{0, 1}, {2.5, 4.5}, {4.5, 7.5}}, Spans{{1, 1.5}, {1.5, 2.5}, {2.5, 4}}});
  CHECK(s.live == std::vector<std::int64_t>{1, 1});
  CHECK_THROWS_AS(simulate(schedule, {.stages = {1}}), std::logic_error);
  CHECK_THROWS_AS(simulate(schedule, {.forward = 0}), std::logic_error);
}

TEST_CASE("simulate: one rank is never idle") {
  const Simulation s = simulate({sequential_actions(3)});
  CHECK(s.makespan == 9);
  CHECK(s.idle == std::vector{0.0});
  CHECK(s.live == std::vector<std::int64_t>{1});
}

TEST_CASE("simulate: a deadlock names who waits for what") {
  const Schedule schedule{
      {{Kind::forward, 0, 1}, {Kind::backward, 0, 1}, {Kind::forward, 0, 0}, {Kind::backward, 0, 0}},
      {{Kind::forward, 1, 0}, {Kind::backward, 1, 0}, {Kind::forward, 1, 1}, {Kind::backward, 1, 1}}};
  CHECK(
      message_of([&] { simulate(schedule); }) ==
      "schedule: deadlock: rank 0 waits at 0B1 (action 1) for 1B1 or 1I1; rank 1 waits at 1F0 (action 0) for "
      "0F0");
}

TEST_CASE("simulate: holders of stages") {
  const auto forwards = [](std::vector<std::int64_t> stages) {
    std::vector<Action> actions;
    for (const std::int64_t stage : stages) actions.push_back({Kind::forward, stage, 0});
    return actions;
  };
  CHECK(ranks_of_stages({forwards({0, 3}), forwards({1, 2})}) == std::vector<std::int64_t>{0, 1, 1, 0});
  const auto refused = [](const Schedule& schedule) {
    return message_of([&] { ranks_of_stages(schedule); });
  };
  CHECK(refused({forwards({0}), forwards({1, 0})}) ==
        "schedule: 0F0 on rank 1, but stage 0 is on rank 0; want each stage on one rank");
  CHECK(refused({forwards({0}), forwards({2})}) ==
        "schedule: stage 1 is on no rank, but the highest stage is 2");
  CHECK(refused({forwards({0}), {}}) == "schedule: rank 1 of 2 has no actions");
}
