#include "parallel/schedule/csv.h"

#include <doctest/doctest.h>

#include <sstream>

#include "parallel/schedule/schedules.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

std::string csv_of(const Schedule& schedule) {
  std::ostringstream out;
  write_schedule_csv(out, schedule);
  return out.str();
}

}  // namespace

TEST_CASE("schedule csv: a row for each rank, a column for each time step") {
  CHECK(csv_of(make_schedule(ScheduleKind::one_f_one_b, 2, 1, 2)) ==
        "0F0,0F1,,0B0,,0B1\n"
        ",1F0,1B0,1F1,1B1,\n");
  CHECK(csv_of(make_schedule(ScheduleKind::gpipe, 1, 1, 1)) == "0F0,0B0\n");
  CHECK(csv_of(make_schedule(ScheduleKind::zbv, 1, 2, 1)) == "0F0,1F0,1I0,1W0,0I0,0W0\n");
}

TEST_CASE("schedule csv: what is written can be read") {
  for (const auto kind :
       {ScheduleKind::interleaved_1f1b, ScheduleKind::interleaved_zero_bubble, ScheduleKind::zbv})
    for (const std::int64_t m : {1, 4, 7}) {
      const Schedule schedule = make_schedule(kind, 3, 2, m);
      CHECK(parse_schedule_csv(csv_of(schedule), "csv") == schedule);
    }
}

TEST_CASE("schedule csv: communication, spaces, carriage returns and empty lines at the end mean nothing") {
  const Schedule schedule = parse_schedule_csv(
      "0UNSHARD, 0F0 ,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\r\n,1RECV_F0,1F0,1I0,1SEND_B0,1W0\r\n\r\n",
      "csv");
  using enum Action::Kind;
  CHECK(schedule == Schedule{{{forward, 0, 0}, {backward, 0, 0}},
                             {{forward, 1, 0}, {backward_input, 1, 0}, {backward_weight, 1, 0}}});
  CHECK(parse_schedule_csv("0F0\n\n1F0", "csv")[1].empty());  // a rank without actions
}

TEST_CASE("schedule csv: other cells are refused with their place") {
  for (const char* cell : {"F0", "0F", "0X0", "0f0", "-1F0", "0F-1", "0F0 0B0", "0 F0", "0FB0", "SEND_F0",
                           "7", "(0F1;1B0)OVERLAP_F_B", "99999999999F0", "0F2147483648", "0F0x", "\"0F0\""})
    CHECK(message_of([&] { parse_schedule_csv(cat("0F0,\n1F0,,", cell, ",1B0\n"), "plan.csv"); }) ==
          cat("plan.csv: row 2, column 3: '", cell,
              "'; want STAGE, then F, B, I or W, then MICROBATCH, such as 4B1, or nothing"));
}
