#include "parallel/schedule/check.h"

#include <doctest/doctest.h>

#include "parallel/schedule/csv.h"
#include "parallel/schedule/schedules.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

std::string fault(std::string_view csv) {
  return message_of([&] { check_schedule(parse_schedule_csv(csv, "csv")); });
}

}  // namespace

TEST_CASE("check_schedule: schedules that can be executed") {
  CHECK(fault("0F0,0B0") == "no error");
  CHECK(fault("0F0,0F1,0B0,0I1,0W1") == "no error");
  CHECK(fault("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0") == "no error");
}

TEST_CASE("check_schedule: what is left for a short last batch can be executed") {
  for (const auto kind :
       {ScheduleKind::interleaved_1f1b, ScheduleKind::interleaved_zero_bubble, ScheduleKind::zbv})
    for (const std::int64_t m : {1, 3, 8}) {
      const Schedule schedule = first_microbatches(make_schedule(kind, 4, 2, 8), m);
      CHECK_NOTHROW(check_schedule(schedule));
      CHECK(microbatch_count(schedule) == m);
    }
}

TEST_CASE("check_schedule: the first action that breaks a rule is named") {
  CHECK(message_of([] { check_schedule({}); }) == "schedule: no rank");
  CHECK(fault("0F0,0B0\n\n1F0,1B0") == "schedule: rank 1 of 3 has no actions");
  CHECK(fault("0F0,0B0,1F0,1B0\n1F1,1B1") ==
        "schedule: 1F1 on rank 1, but stage 1 is on rank 0; want each stage on one rank");
  CHECK(fault("0F0,0F0,0B0") == "schedule: rank 0, action 1: 0F0 occurs twice");
  CHECK(fault("0F1,0F0,0B0,0B1") ==
        "schedule: rank 0, action 1: 0F0 comes after 0F1; want ascending microbatches");
  CHECK(fault("0F0,0F1,0I0,0I1,0W1,0W0") ==
        "schedule: rank 0, action 5: 0W0 comes after 0W1; want ascending microbatches");
  CHECK(fault("0B0,0F0") == "schedule: rank 0, action 0: 0B0 comes before 0F0");
  CHECK(fault("0I0,0F0,0W0") == "schedule: rank 0, action 0: 0I0 comes before 0F0");
  CHECK(fault("0F0,0W0,0I0") == "schedule: rank 0, action 1: 0W0 comes before 0I0");
  CHECK(fault("0F0,0B0,0I0,0W0") ==
        "schedule: rank 0, action 2: 0I0 comes after 0B0; want either B, or I and W, for a microbatch of a "
        "stage");
  CHECK(fault("0F0,0I0,0B0,0W0") ==
        "schedule: rank 0, action 2: 0B0 comes after 0I0; want either B, or I and W, for a microbatch of a "
        "stage");
}

TEST_CASE("check_schedule: missing actions") {
  CHECK(fault("0F0,0F1,0B0,0B1\n1F0,1B0") == "schedule: no 1F1, but 2 stages and 2 microbatches occur");
  CHECK(fault("0F0,0F1,0B0") == "schedule: no 0B1, but 1 stage and 2 microbatches occur");
  CHECK(fault("0F0,0I0") == "schedule: no 0W0, but 1 stage and 1 microbatch occur");
  CHECK(fault("0F2147483647,0B2147483647") ==
        "schedule: no 0F0, but 1 stage and 2147483648 microbatches occur");
}

TEST_CASE("check_schedule: ranks that wait for each other") {
  CHECK(
      fault("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1") ==
      "schedule: deadlock: rank 0 waits at 0B0 (action 1) for 1B0 or 1I0; rank 1 waits at 1F1 (action 1) for "
      "0F1");
}
