#include "train/recipe/pipeline_words.h"

#include <doctest/doctest.h>

#include "tests/support/message_of.h"

using namespace nemocube::recipe;
using nemocube::testing::message_of;

TEST_CASE("names of schedules: ours, and PyTorch's classes in any case") {
  for (const char* name :
       {"gpipe", "1f1b", "interleaved1f1b", "interleavedzerobubble", "zbv", "GPipe", "Interleaved1F1B",
        "Schedule1F1B", "ScheduleZBVZeroBubble", "scheduleinterleaved1f1b"})
    CHECK(message_of([&] { check_schedule_name(name); }) == "no error");
  for (const char* name : {"", "dualpipev", "1f1b "})
    CHECK(message_of([&] {
            check_schedule_name(name);
          }).starts_with(nemocube::cat("no pipeline schedule '", name, "'; want one of gpipe, 1f1b, ")));
}

TEST_CASE("weights of blocks: what is not named keeps its default") {
  CHECK(parse_block_weights("moe=4, head = 2.5") == BlockWeights{.moe = 4, .head = 2.5});
  CHECK(parse_block_weights("mamba=0,attention=1,mlp=2,moe=3,embeddings=4,head=5") ==
        BlockWeights{.mamba = 0, .attention = 1, .mlp = 2, .moe = 3, .embeddings = 4, .head = 5});
  for (const char* text :
       {"", "moe", "moe=", "=3", "moe=-1", "moe=x", "moe=inf", "gate=1", "moe=3,", "moe==3"})
    CHECK_MESSAGE(message_of([&] { parse_block_weights(text); }).starts_with("want KIND=WEIGHT"), text);
}
