#include "parallel/schedule/transfers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "parallel/schedule/schedules.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using enum Transfer::Payload;

std::vector<Program> programs_of(ScheduleKind kind, std::int64_t pp, std::int64_t chunks,
                                 std::int64_t microbatches) {
  const Schedule schedule = make_schedule(kind, pp, chunks, microbatches);
  return make_programs(schedule, simulate(schedule));
}

/// "0F0 [f0.0>1 g1.0<1]": actions, and exchanges of f (activation) or g (gradient) STAGE.MICROBATCH > to or <
/// from RANK.
std::string text_of(const Program& program, std::int64_t rank) {
  std::string text;
  for (const ProgramItem& item : program) {
    if (!text.empty()) text += ' ';
    if (const auto* action = std::get_if<Action>(&item)) {
      text += cat(*action);
      continue;
    }
    text += '[';
    for (const Transfer& t : std::get<Exchange>(item))
      text += cat(text.back() == '[' ? "" : " ", t.payload == activation ? 'f' : 'g', t.stage, '.',
                  t.microbatch, t.from == rank ? cat('>', t.to) : cat('<', t.from));
    text += ']';
  }
  return text;
}

}  // namespace

TEST_CASE("transfers: programs of 1F1B on 2 ranks") {
  // times: rank 0 F0 0-1, F1 1-2, B0 4-6, B1 7-9; rank 1 F0 1-2, B0 2-4, F1 4-5, B1 5-7
  const auto programs = programs_of(ScheduleKind::one_f_one_b, 2, 1, 2);
  CHECK(text_of(programs[0], 0) == "0F0 [f0.0>1] 0F1 [f0.1>1] [g1.0<1] 0B0 [g1.1<1] 0B1");
  CHECK(text_of(programs[1], 1) == "[f0.0<0] 1F0 [f0.1<0] 1B0 [g1.0>0] 1F1 1B1 [g1.1>0]");
}

TEST_CASE("transfers: transfers of one time form one exchange, with several ranks and in both directions") {
  // In the steady state of zero bubble all actions take one unit, so ranks end theirs at the same times.
  const auto programs = programs_of(ScheduleKind::interleaved_zero_bubble, 2, 2, 2);
  CHECK(text_of(programs[1], 1) ==
        "[f0.0<0] 1F0 [f0.1<0 f1.0>0] 1F1 [f1.1>0 f2.0<0] 3F0 [f2.1<0] 3I0 [g3.0>0] 3F1 [g2.0<0] 3I1 "
        "[g3.1>0] 3W0 [g2.1<0] 1I0 [g1.0>0] 3W1 1I1 [g1.1>0] 1W0 1W1");
}

TEST_CASE("transfers: stages that are neighbours on one rank exchange nothing") {
  const auto alone = programs_of(ScheduleKind::zbv, 1, 2, 3);
  for (const ProgramItem& item : alone[0]) CHECK(std::holds_alternative<Action>(item));
  const auto v = programs_of(ScheduleKind::zbv, 2, 2, 3);  // rank 1 holds stages 1 and 2
  for (const Program& program : v)
    for (const ProgramItem& item : program)
      if (const auto* exchange = std::get_if<Exchange>(&item))
        for (const Transfer& t : *exchange) CHECK(t != Transfer{1, t.microbatch, activation, t.from, t.to});
}

TEST_CASE("transfers: sender and receiver list the transfers between them in the same order") {
  for (const auto kind :
       {ScheduleKind::interleaved_1f1b, ScheduleKind::interleaved_zero_bubble, ScheduleKind::zbv})
    for (const std::int64_t pp : {2, 3, 4})
      for (const std::int64_t m : {1, 3, 8}) {
        using Ends = std::pair<std::int64_t, std::int64_t>;
        std::map<Ends, std::vector<Transfer>> sent, received;
        const auto programs = programs_of(kind, pp, 2, m);
        for (std::size_t rank = 0; rank < programs.size(); ++rank)
          for (const ProgramItem& item : programs[rank])
            if (const auto* exchange = std::get_if<Exchange>(&item))
              for (const Transfer& t : *exchange)
                (t.from == static_cast<std::int64_t>(rank) ? sent : received)[{t.from, t.to}].push_back(t);
        CHECK(sent == received);
        std::size_t count = 0;
        for (const auto& [ends, transfers] : sent) count += transfers.size();
        // Every edge between stages is crossed forth and back, except the one inside the last rank of a V.
        CHECK(count == static_cast<std::size_t>(2 * m * (2 * pp - 1 - (kind == ScheduleKind::zbv))));
      }
}

TEST_CASE("transfers: programs end whatever the stages cost") {
  for (const auto kind :
       {ScheduleKind::interleaved_1f1b, ScheduleKind::interleaved_zero_bubble, ScheduleKind::zbv}) {
    const Schedule schedule = make_schedule(kind, 3, 2, 7);
    const Simulation simulation =
        simulate(schedule, {.forward = 0.1, .backward = 0.3, .stages = {1, 0.3, 2.7, 1.0 / 3, 1, 5}});
    CHECK_NOTHROW(check_rendezvous(make_programs(schedule, simulation)));
  }
}

TEST_CASE("transfers: programs that wait for each other, or use what has not come, are found") {
  auto programs = programs_of(ScheduleKind::one_f_one_b, 2, 1, 2);
  CHECK(message_of([&] { check_rendezvous(programs); }) == "no error");

  // Rank 0 sends the output of 0F1 before it receives the gradient of 1B0, rank 1 has them the other way
  // round.
  auto crossed = programs;
  std::rotate(crossed[1].begin() + 2, crossed[1].begin() + 3, crossed[1].begin() + 5);
  CHECK(message_of([&] { check_rendezvous(crossed); }) ==
        "schedule: exchanges deadlock: rank 0 waits at item 3 for the output of stage 0 for microbatch 1 "
        "(rank 0 to "
        "1); rank 1 waits at item 3 for the input gradient of stage 1 for microbatch 0 (rank 1 to 0)");

  auto late = programs;
  std::swap(late[1][0], late[1][1]);
  CHECK(message_of([&] { check_rendezvous(late); }) ==
        "schedule: rank 1, item 0: 1F0 comes before the output of stage 0 for microbatch 0 (rank 0 to 1)");

  auto early = programs;
  std::swap(early[0][0], early[0][1]);
  CHECK(message_of([&] { check_rendezvous(early); }) ==
        "schedule: rank 0, item 0: the output of stage 0 for microbatch 0 (rank 0 to 1) cannot be sent from "
        "here yet");

  auto missing = programs;
  missing[0].erase(missing[0].begin() + 1);
  CHECK(message_of([&] { check_rendezvous(missing); }).find("schedule: exchanges deadlock: ") == 0);
}
