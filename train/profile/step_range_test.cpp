#include "train/profile/step_range.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("--profile: ranges of steps") {
  CHECK(parse_step_range("steps=5-7") == StepRange{5, 7});
  CHECK(parse_step_range("steps=5-7").count() == 3);
  CHECK(parse_step_range("steps=0-0") == StepRange{0, 0});
  CHECK(to_string(StepRange{5, 7}) == "5-7");
  CHECK(message_of<Error>([] { parse_step_range("steps=9-5"); }) ==
        "--profile steps=9-5: the first step 9 is behind the last one, 5");
  for (const char* text : {"", "5-7", "steps=", "steps=5", "steps=-", "steps=5-", "steps=-5", "steps=5-x",
                           "steps= 5-7", "steps=5-7 ", "steps=5-7-9", "steps=-1-3", "steps=5.0-7",
                           "steps=5-99999999999999999999", "Steps=5-7"}) {
    CAPTURE(text);
    CHECK(message_of<Error>([&] { parse_step_range(text); })
              .starts_with(
                  "--profile: want steps=A-B, the numbers of the first and the last step (from 0), got '"));
  }
}
