#include "parallel/context_parallel/dealt_heads.h"

#include <doctest/doctest.h>

#include "model/blocks/gated_delta_net/gated_delta_net.h"
#include "model/blocks/mamba/mamba.h"
#include "model/test_configs.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("context parallel: heads and groups of Mamba on each rank") {
  struct Row {
    std::int64_t heads, groups, cp;
    ScanHeadCut want;
  };
  for (const auto& [heads, groups, cp, want] :
       {Row{64, 16, 4, {16, 4, 1}}, Row{64, 8, 8, {8, 1, 1}}, Row{64, 4, 8, {8, 1, 2}},
        Row{64, 1, 4, {16, 1, 4}}, Row{12, 3, 1, {12, 3, 1}}}) {
    const ScanHeadCut got = cut_scan_heads(heads, groups, cp, mamba_words);
    CHECK(got.heads == want.heads);
    CHECK(got.groups == want.groups);
    CHECK(got.sharers == want.sharers);
  }
}

TEST_CASE("context parallel: sizes that do not fit name those that do") {
  const auto message = [](std::int64_t heads, std::int64_t groups, std::int64_t cp) {
    return message_of([&] { cut_scan_heads(heads, groups, cp, mamba_words); });
  };
  CHECK(message(12, 3, 2) ==
        "distributed.cp_size is 2; Mamba blocks have 12 heads and 3 groups of B and C on a tensor-parallel "
        "rank; want "
        "a divisor of the heads that divides the groups or is a multiple of them: 1, 3, 6 or 12");
  CHECK(message(12, 3, 4).ends_with(": 1, 3, 6 or 12"));
  CHECK(message(3, 2, 2).ends_with(": 1"));
  CHECK(message(7, 1, 2).ends_with(": 1 or 7"));
  CHECK(message(4, 4, 0).starts_with("distributed.cp_size is 0;"));

  ModelConfig config = dense({"M*-", 12, 4, 2, 14, 24, 3, 5});
  config.mamba.n_groups = 2;
  check_context_parallel(config, 1, 8);
  check_context_parallel(config, 2, 3);  // one group and twelve heads on each rank
  check_context_parallel(config, 4, 6);  // groups on two ranks each
  CHECK_THROWS_AS(check_context_parallel(config, 1, 3), Error);
  CHECK_THROWS_AS(check_context_parallel(config, 4, 4), Error);
  config.blocks = parse_pattern("M*M").blocks;
  own_config(config, 2).mamba.num_heads = 6;
  check_context_parallel(config, 1, 6);
  CHECK(message_of([&] {
          check_context_parallel(config, 1, 4);
        }).starts_with("block 2: distributed.cp_size is 4; Mamba blocks have 6 heads"));
  config.own_configs.clear();
  config.blocks = parse_pattern("*-").blocks;
  check_context_parallel(config, 1, 5);
  CHECK_THROWS_AS(check_context_parallel(config, 1, 0), Error);
}
