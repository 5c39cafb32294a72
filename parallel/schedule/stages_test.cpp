#include "parallel/schedule/stages.h"

#include <doctest/doctest.h>

#include "model/blocks/moe/moe_block.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr std::string_view nano_pattern =
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";  // 52 blocks
using Sizes = std::vector<std::int64_t>;

/// The numbers of blocks; checks that stages follow each other and have embeddings and head at the ends.
Sizes sizes_of(const std::vector<ModelChunk>& stages, std::int64_t blocks) {
  Sizes sizes;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    CHECK(stages[i].first_block == end);
    CHECK(stages[i].embeddings == (i == 0));
    CHECK(stages[i].head == (i + 1 == stages.size()));
    end = stages[i].end_block;
    sizes.push_back(end - stages[i].first_block);
  }
  CHECK(end == blocks);
  return sizes;
}

Sizes weighted(std::string_view pattern, std::int64_t stages, std::string_view weights = "") {
  const auto blocks = parse_pattern(pattern).blocks;
  return sizes_of(weighted_stages(blocks, stages, parse_block_weights(weights)), std::ssize(blocks));
}

std::string weights_fault(std::string_view text) {
  return message_of([&] { parse_block_weights(text); });
}

}  // namespace

TEST_CASE("stages: even split, larger stages first") {
  CHECK(sizes_of(even_stages(52, 8), 52) == Sizes{7, 7, 7, 7, 6, 6, 6, 6});
  CHECK(sizes_of(even_stages(3, 3), 3) == Sizes{1, 1, 1});
  CHECK(sizes_of(even_stages(5, 1), 5) == Sizes{5});
  for (const std::int64_t stages : {0, 4, -1})
    CHECK(message_of([&] { even_stages(3, stages); }) ==
          cat("pipeline: ", stages,
              " stages for 3 blocks; want at least one block for each stage, so 1 to 3 stages"));
}

TEST_CASE("stages: split by weight") {
  CHECK(weighted(nano_pattern, 8) == Sizes{7, 7, 6, 6, 6, 7, 7, 6});
  CHECK(weighted("M*M*M*", 3) == Sizes{2, 2, 2});
  CHECK(weighted("EEMM", 2) == Sizes{2, 2});  // 6 and 4; 3 and 7 is further from 5
  CHECK(weighted("E--E--", 2) == Sizes{3, 3});
  CHECK(weighted("MMM", 2) == Sizes{1, 2});  // 2 and 4 are equally near to 3
  CHECK(weighted("E---", 4) == Sizes{1, 1, 1, 1});
  CHECK(weighted("----", 2, "embeddings=2") == Sizes{1, 3});
  CHECK(weighted("----", 2, "head=2") == Sizes{3, 1});
  CHECK(weighted("----", 2, "embeddings=100") == Sizes{1, 3});
  CHECK(weighted("----", 2, "mlp=0") == Sizes{1, 3});
  CHECK(message_of([] { weighted("MM", 3); }) ==
        "pipeline: 3 stages for 2 blocks; want at least one block for each stage, so 1 to 2 stages");
}

TEST_CASE("stages: weights of blocks from text") {
  CHECK(parse_block_weights("") == BlockWeights{});
  CHECK(parse_block_weights("moe=3,attention=2,mamba=2,mlp=1") == BlockWeights{});
  BlockWeights weights;
  weights.of(moe_block) = 4.5;
  weights.head = 2;
  CHECK(parse_block_weights(" moe : 4.5 , head=2,, embeddings=0 ") == weights);
  CHECK(weights_fault("moe") == "block weights: 'moe'; want NAME=WEIGHT");
  CHECK(weights_fault("mlp=1,expert=2") ==
        "block weights: no 'expert'; there are: mamba, attention, mlp, moe, linear, gated_delta_net, "
        "per_layer_input, embeddings, head");
  CHECK(weights_fault("mlp=1,mlp=2") == "block weights: 'mlp=2' is the second weight of mlp");
  for (const char* value : {"", "x", "1x", "-1", "nan", "inf", "1e999"})
    CHECK(weights_fault(cat("moe=", value)) ==
          cat("block weights: the weight of moe is '", value, "'; want a number of 0 or more"));
}

TEST_CASE("stages: number of stages from layers_per_stage") {
  using enum ScheduleKind;
  CHECK(count_stages(one_f_one_b, 4, 52) == 4);
  CHECK(count_stages(interleaved_1f1b, 4, 52) == 8);
  CHECK(count_stages(zbv, 4, 52) == 8);
  CHECK(count_stages(one_f_one_b, 4, 52, 13) == 4);
  CHECK(count_stages(interleaved_1f1b, 4, 52, 7) == 8);
  CHECK(count_stages(interleaved_1f1b, 4, 52, 6, "up") == 12);  // from 9
  CHECK(count_stages(interleaved_1f1b, 4, 52, 6, "down") == 8);
  CHECK(count_stages(one_f_one_b, 4, 52, 100, "up") == 4);  // from 1
  CHECK(message_of([] { count_stages(interleaved_1f1b, 4, 52, 6); }) ==
        "layers_per_stage 6 makes 9 stages of 52 blocks; want a multiple of pp 4: "
        "round_virtual_stages_to_pp_multiple up makes 12, down 8");
  CHECK(message_of([] { count_stages(one_f_one_b, 4, 52, 20, "down"); }) ==
        "layers_per_stage 20 makes 3 stages of 52 blocks; want a multiple of pp 4: "
        "round_virtual_stages_to_pp_multiple up makes 4");
  CHECK(message_of([] { count_stages(one_f_one_b, 4, 52, 6, "nearest"); }) ==
        "round_virtual_stages_to_pp_multiple is 'nearest'; want up or down");
  CHECK(message_of([] { count_stages(one_f_one_b, 4, 52, 0); }) == "layers_per_stage is 0; want at least 1");
  CHECK(message_of([] { count_stages(one_f_one_b, 4, 52, 7); }) ==
        "pipeline: 2 stages for each rank; 1f1b wants exactly 1");
  CHECK(message_of([] { count_stages(interleaved_1f1b, 4, 52, 13); }) ==
        "pipeline: 1 stage for each rank; interleaved1f1b wants at least 2 (1f1b is the same order for 1)");
}
