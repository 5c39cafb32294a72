#include "parallel/parallel_model/parallel_plan.h"

#include <doctest/doctest.h>

#include "model/test_configs.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelSetup ahead() {
  ModelSetup config = with_experts({"M*E", 8, 2, 1, 8, 2, 4, 4, 4}, {4, 2, 8, 8});
  config.train_mtp({1, false, 0.1});
  return config;
}

ParallelPlan pipeline(std::vector<std::int64_t> rank_of_stage) {
  ParallelPlan plan;
  plan.grid.pp = 3;
  plan.pipeline.stages.resize(rank_of_stage.size());
  plan.pipeline.rank_of_stage = std::move(rank_of_stage);
  return plan;
}

}  // namespace

TEST_CASE(
    "multi-token prediction: the last pipeline rank has a copy of the embeddings where it is not the first") {
  const ModelSetup config = ahead();
  ModelSetup plain = config;
  plain.train_mtp({});
  CHECK(copies_embeddings(pipeline({0, 1, 2}), config));
  CHECK_FALSE(copies_embeddings(pipeline({0, 1, 2}), plain));
  CHECK_FALSE(copies_embeddings(pipeline({0, 1, 2, 2, 1, 0}), config));
  CHECK(used_groups(pipeline({0, 1, 2}), config).contains(Group::embd));
  CHECK_FALSE(used_groups(pipeline({0, 1, 2}), plain).contains(Group::embd));
  CHECK_THROWS_WITH_AS(
      copies_embeddings(pipeline({0, 2, 1}), config),
      "multi-token prediction: the first and the last pipeline stage are on the pipeline ranks 0 "
      "and 1; want the same rank, or 0 and 2",
      Error);
}

TEST_CASE(
    "multi-token prediction: both copies of the embeddings have a part of the gradient, and the first "
    "counts") {
  TensorCut cut;
  cut.shard = Shard(Shape{5, 3});
  cut.counted = {Range{0, 15}};
  const TensorCut first = with_copy_at_end(cut, {.pp = 0}), last = with_copy_at_end(cut, {.pp = 2});
  for (const TensorCut& c : {first, last}) {
    CHECK(c.sum == Group::embd);
    REQUIRE(c.summed.size() == 1);
    CHECK(c.summed[0].size() == 15);
  }
  CHECK(first.counted.size() == 1);
  CHECK(last.counted.empty());
}
