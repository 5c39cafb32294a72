#include "parallel/schedule/schedules.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "parallel/schedule/check.h"
#include "parallel/schedule/simulate.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr ScheduleKind all_kinds[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                      ScheduleKind::interleaved_1f1b, ScheduleKind::interleaved_zero_bubble,
                                      ScheduleKind::zbv};

/// "0F0 0F1 ..." of one rank.
std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) text += cat(text.empty() ? "" : " ", action);
  return text;
}

std::int64_t most_live(const Simulation& simulation) { return *std::ranges::max_element(simulation.live); }

}  // namespace

TEST_CASE("schedules: our names and PyTorch's, in any case; others are refused with the list") {
  for (const ScheduleKind kind : all_kinds) CHECK(parse_schedule_kind(name_of(kind)) == kind);
  CHECK(parse_schedule_kind("ScheduleGPipe") == ScheduleKind::gpipe);
  CHECK(parse_schedule_kind("Schedule1F1B") == ScheduleKind::one_f_one_b);
  CHECK(parse_schedule_kind("ScheduleInterleaved1F1B") == ScheduleKind::interleaved_1f1b);
  CHECK(parse_schedule_kind("ScheduleInterleavedZeroBubble") == ScheduleKind::interleaved_zero_bubble);
  CHECK(parse_schedule_kind("ScheduleZBVZeroBubble") == ScheduleKind::zbv);
  CHECK(parse_schedule_kind("Interleaved1F1B") == ScheduleKind::interleaved_1f1b);
  for (const char* name : {"dualpipev", "", "1f1", "1f1bb"})
    CHECK(message_of([&] { parse_schedule_kind(name); }) ==
          cat("no pipeline schedule '", name,
              "'; there are: gpipe (ScheduleGPipe), 1f1b (Schedule1F1B), interleaved1f1b "
              "(ScheduleInterleaved1F1B), interleavedzerobubble (ScheduleInterleavedZeroBubble), zbv "
              "(ScheduleZBVZeroBubble)"));
}

TEST_CASE("schedules: stages of a rank, in a loop and in a V") {
  using Ids = std::vector<std::int64_t>;
  const auto loop = StagePlacement::loop, v = StagePlacement::v;
  CHECK(stages_of_rank(loop, 2, 4, 4) == Ids{2});
  CHECK(stages_of_rank(loop, 3, 4, 8) == Ids{3, 7});
  CHECK(stages_of_rank(loop, 0, 2, 6) == Ids{0, 2, 4});
  CHECK(stages_of_rank(v, 0, 4, 8) == Ids{0, 7});
  CHECK(stages_of_rank(v, 3, 4, 8) == Ids{3, 4});
  CHECK(stages_of_rank(v, 0, 1, 2) == Ids{0, 1});
  const auto refused = [](StagePlacement placement, std::int64_t pp, std::int64_t stages) {
    return message_of([&] { stages_of_rank(placement, 0, pp, stages); });
  };
  CHECK(refused(loop, 4, 5) == "pipeline: 5 stages on 4 ranks; want a multiple of 4, such as 4 or 8");
  CHECK(refused(loop, 4, 3) == "pipeline: 3 stages on 4 ranks; want a multiple of 4, such as 4 or 8");
  CHECK(refused(loop, 4, 0) == "pipeline: 0 stages on 4 ranks; want a multiple of 4, such as 4 or 8");
  CHECK(refused(loop, 0, 4) == "pipeline: pp is 0; want at least 1");
  for (const std::int64_t stages : {4, 12})
    CHECK(refused(v, 4, stages) ==
          cat("pipeline: ", stages,
              " stages on 4 ranks; placement v wants 2 stages for each rank, which makes 8"));
}

TEST_CASE("schedules: 1F1B of 4 ranks and 6 microbatches") {
  const Schedule s = make_schedule(ScheduleKind::one_f_one_b, 4, 1, 6);
  REQUIRE(s.size() == 4);
  CHECK(text_of(s[0]) == "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0B3 0B4 0B5");
  CHECK(text_of(s[1]) == "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1B4 1B5");
  CHECK(text_of(s[2]) == "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2B5");
  CHECK(text_of(s[3]) == "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5");
}

TEST_CASE("schedules: GPipe does all forwards, then all backwards") {
  const Schedule s = make_schedule(ScheduleKind::gpipe, 2, 1, 3);
  CHECK(text_of(s[0]) == "0F0 0F1 0F2 0B0 0B1 0B2");
  CHECK(text_of(s[1]) == "1F0 1F1 1F2 1B0 1B1 1B2");
}

TEST_CASE("schedules: interleaved 1F1B of 2 ranks, 2 chunks, and rounds of 3 and 2 microbatches") {
  const Schedule s = make_schedule(ScheduleKind::interleaved_1f1b, 2, 2, 5);
  CHECK(text_of(s[0]) == "0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 0B3 0B4");
  CHECK(text_of(s[1]) == "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 1B4");
}

TEST_CASE("schedules: interleaved zero bubble delays weight gradients by the rank") {
  const Schedule s = make_schedule(ScheduleKind::interleaved_zero_bubble, 2, 2, 2);
  CHECK(text_of(s[0]) == "0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1");
  CHECK(text_of(s[1]) == "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1");
}

TEST_CASE("schedules: ZBV of 2 ranks and 4 microbatches") {
  const Schedule s = make_schedule(ScheduleKind::zbv, 2, 2, 4);
  CHECK(text_of(s[0]) ==
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3");
}

TEST_CASE("schedules: makespans that Megatron's and PyTorch's orders have") {
  const auto makespan = [](ScheduleKind kind, std::int64_t pp, std::int64_t chunks, std::int64_t m) {
    return simulate(make_schedule(kind, pp, chunks, m)).makespan;
  };
  CHECK(makespan(ScheduleKind::interleaved_1f1b, 4, 2, 8) == 57);
  CHECK(makespan(ScheduleKind::interleaved_1f1b, 4, 2, 4) == 33);
  CHECK(makespan(ScheduleKind::interleaved_1f1b, 2, 2, 5) == 33);
  CHECK(makespan(ScheduleKind::interleaved_1f1b, 2, 3, 4) == 39);
  CHECK(makespan(ScheduleKind::zbv, 4, 2, 8) == 51);
  CHECK(makespan(ScheduleKind::zbv, 4, 2, 16) == 99);
}

// check_schedule covers completeness, order and deadlock.
TEST_CASE("schedules: every kind and size can be executed, in the time and memory that the header says") {
  for (const ScheduleKind kind : all_kinds)
    for (const std::int64_t p : {1, 2, 3, 4, 6, 7, 8})
      for (const std::int64_t v : {1, 2, 3, 4}) {
        if (message_of([&] { check_chunks(kind, v); }) != "no error") continue;
        for (std::int64_t m = 1; m <= 24; ++m) {
          CAPTURE(name_of(kind));
          CAPTURE(p);
          CAPTURE(v);
          CAPTURE(m);
          const Schedule schedule = make_schedule(kind, p, v, m);
          CHECK_NOTHROW(check_schedule(schedule));
          CHECK(microbatch_count(schedule) == m);
          const auto holders = ranks_of_stages(schedule);
          CHECK(std::ssize(holders) == p * v);
          for (std::int64_t rank = 0; rank < p; ++rank)
            for (const std::int64_t stage : stages_of_rank(placement_of(kind), rank, p, p * v))
              CHECK(holders[static_cast<std::size_t>(stage)] == rank);

          const Simulation simulation = simulate(schedule);
          const double bubble = simulation.makespan - static_cast<double>(3 * v * m);
          const std::int64_t rounds = std::max<std::int64_t>(1, m / p), n = (m + rounds - 1) / rounds;
          switch (kind) {
            case ScheduleKind::gpipe:
              CHECK(bubble == 3 * (p - 1));
              CHECK(most_live(simulation) == m);
              break;
            case ScheduleKind::one_f_one_b:
              CHECK(bubble == 3 * (p - 1));
              CHECK(most_live(simulation) == std::min(p, m));
              break;
            case ScheduleKind::interleaved_1f1b:
              if (m >= p) CHECK(bubble == 3 * (p - 1));
              CHECK(most_live(simulation) == std::min((v - 1) * n + 2 * p - 1, v * m));
              break;
            case ScheduleKind::interleaved_zero_bubble:
              if (m >= p) CHECK(bubble == p - 1);
              CHECK(most_live(simulation) == std::min((v - 1) * n + p, v * m));
              break;
            case ScheduleKind::zbv:
              if (m >= 2 * p) CHECK(bubble == p - 1);
              CHECK(most_live(simulation) == 2 * std::min(p, m));
              break;
          }
        }
      }
}

TEST_CASE("schedules: sizes that a kind does not take") {
  const auto refused = [](ScheduleKind kind, std::int64_t pp, std::int64_t chunks, std::int64_t m) {
    return message_of([&] { make_schedule(kind, pp, chunks, m); });
  };
  CHECK(refused(ScheduleKind::gpipe, 4, 2, 8) == "pipeline: 2 stages for each rank; gpipe wants exactly 1");
  CHECK(refused(ScheduleKind::one_f_one_b, 4, 0, 8) ==
        "pipeline: 0 stages for each rank; 1f1b wants exactly 1");
  CHECK(refused(ScheduleKind::zbv, 4, 3, 8) == "pipeline: 3 stages for each rank; zbv wants exactly 2");
  CHECK(refused(ScheduleKind::interleaved_1f1b, 4, 1, 8) ==
        "pipeline: 1 stage for each rank; interleaved1f1b wants at least 2 (1f1b is the same order for 1)");
  CHECK(refused(ScheduleKind::one_f_one_b, 0, 1, 8) == "pipeline: pp is 0; want at least 1");
  CHECK(refused(ScheduleKind::one_f_one_b, 4, 1, 0) == "pipeline: 0 microbatches; want at least 1");
  const std::int64_t huge = std::int64_t{1} << 62;
  for (const std::string& message :
       {refused(ScheduleKind::one_f_one_b, huge, 1, huge),
        refused(ScheduleKind::interleaved_1f1b, 2, huge, 2), refused(ScheduleKind::gpipe, 1, 1, huge),
        refused(ScheduleKind::zbv, 1 << 20, 2, 1)})
    CHECK(message.find("more than 16777216 forwards in all") != std::string::npos);
}
