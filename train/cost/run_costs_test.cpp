#include <doctest/doctest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/json/json.h"
#include "model/test_configs.h"
#include "train/cost/step_time.h"
#include "train/cost/write_plan.h"
#include "train/ranks/plan_model.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

struct Published {
  const char* name;
  ModelSetup config;
  std::int64_t ranks, tp, pp, ep, elements;
};

std::vector<Published> published_models() {
  return {{"30B", with_experts({nano_30b, 2688, 32, 2, 1856, 64, 64, 128}, {128, 6, 1856, 3712}), 1024, 2, 4,
           32, 31577940288},
          {"120B", with_experts({super, 4096, 32, 2, 2688, 128, 64, 128}, {512, 22, 2688, 5376, 1024}), 2048,
           4, 8, 64, 120668707840},
          {"550B", with_experts({ultra, 8192, 64, 2, 5120, 256, 64, 128}, {512, 22, 5120, 10240, 2048}), 4096,
           8, 4, 64, 549308993536}};
}

RunCosts plan_of(const Published& m, std::int64_t first_rank = 0) {
  DistributedSection section;
  section.tp_size = m.tp;
  section.sequence_parallel = true;
  section.pp_size = m.pp;
  section.ep_size = m.ep;
  section.pipeline = PipelineSection{};
  StepLoad load;
  load.dtype = DType::bf16;
  load.microbatch = Sequences::uniform(1, 4096);
  load.microbatches = 16;
  const ParallelSettings settings{.dispatcher = DispatcherKind::alltoall};
  RankSizes ranks = rank_sizes(section, m.ranks);
  ranks.grid.first_rank = first_rank;
  return {m.config, plan_model(section, settings, ranks, m.config), load, {}};
}

}  // namespace

TEST_CASE("plan: published models on thousands of ranks add up, in seconds") {
  for (const Published& m : published_models()) {
    CAPTURE(m.name);
    const std::clock_t start = std::clock();
    RunCosts costs = plan_of(m);
    std::int64_t counted = 0, moments = 0;
    for (int rank = 0; rank < m.ranks; ++rank) {
      counted += costs.counted_parameters(rank);
      moments += costs.memory(rank).at(3).bytes;
      CHECK(costs.traffic(rank).at({Group::pp, Operation::exchange}).calls > 0);
    }
    CHECK(counted == m.elements);
    // Two f32 numbers for each parameter; a few parameters are on all tensor-parallel ranks.
    CHECK(moments > 8 * (m.elements - m.elements / 1000));
    CHECK(moments < 8 * (m.elements + m.elements / 20));
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    MESSAGE(m.name, " on ", m.ranks, " ranks: ", seconds, " s");
    CHECK(seconds < 20);
  }
}

TEST_CASE("plan: costs of a model whose blocks all have a config are those of a model of these sizes") {
  Published uniform = published_models()[0];
  for (const TensorSpec& spec : tensor_specs(uniform.config))
    if (spec.linear && spec.module != head_name())
      uniform.config.choices.lora.modules.emplace(spec.id.module(), LoraModule{.rank = 8});
  Published own = uniform;
  own.config.config = with_own_of_all(uniform.config.config);
  RunCosts a = plan_of(uniform), b = plan_of(own);
  CHECK(b.bubble().of_own_stages == doctest::Approx(a.bubble().of_own_stages).epsilon(1e-12));
  CHECK(step_time(b, {}).seconds == doctest::Approx(step_time(a, {}).seconds).epsilon(1e-12));
  for (const int rank : {0, 300, 1023}) {
    CHECK(b.traffic(rank) == a.traffic(rank));
    const auto want = a.memory(rank), got = b.memory(rank);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i].bytes == want[i].bytes);
  }
}

TEST_CASE("plan: a grid that begins at another rank has the same costs, so many ranks further") {
  const Published m = published_models().front();
  constexpr int first = 64;
  RunCosts at_0 = plan_of(m), costs = plan_of(m, first);
  CHECK(costs.parallel().grid.first_rank == first);
  for (const int rank : {0, 300, 1023}) {
    CHECK(costs.traffic(rank + first) == at_0.traffic(rank));
    CHECK(costs.counted_parameters(rank + first) == at_0.counted_parameters(rank));
    CHECK(costs.nccl_bytes(rank + first) == at_0.nccl_bytes(rank));
    CHECK(total_bytes(costs.memory(rank + first)) == total_bytes(at_0.memory(rank)));
  }
  CHECK(step_time(costs, {}).seconds == step_time(at_0, {}).seconds);
  const auto json = [](RunCosts& of) {
    std::ostringstream text;
    print_plan_json(text, {"1024 ranks", "a step", ""}, of);
    Json object = parse_json(text.str(), "plan");
    object.erase("groups");  // names their ranks
    return object;
  };
  CHECK(json(costs) == json(at_0));
}

TEST_CASE("plan: as text and as JSON") {
  const Published m = published_models().front();
  RunCosts costs = plan_of(m);
  const PlanWords words{"1024 ranks", "a step", "tokens are spread evenly over the experts"};
  std::ostringstream text, json;
  print_plan(text, words, costs);
  CHECK(text.str().find("provided that tokens are spread evenly over the experts") != std::string::npos);
  CHECK(text.str().find("0-255") != std::string::npos);
  CHECK(text.str().find("NCCL") == std::string::npos);
  print_plan_json(json, words, costs);
  const Json object = parse_json(json.str(), "plan");
  CHECK(object["parameters"] == m.elements);
  CHECK(object["class_of_rank"].size() == 1024);
  const Json& last = object["classes"].at(object["class_of_rank"].back().get<std::size_t>());
  CHECK(last["pipeline_rank"] == 3);
  std::int64_t bytes = 0;
  for (const Json& item : last["traffic"]) bytes += item["bytes"].get<std::int64_t>();
  for (const auto& [key, sum] : costs.traffic(1023)) bytes -= sum.bytes;
  CHECK(bytes == 0);
  CHECK(last["bytes"].size() == costs.memory(1023).size());
  CHECK(object["bubble"]["of_equal_stages"].get<double>() ==
        doctest::Approx(3.0 / 19));  // (pp - 1) / (M + pp - 1)
}

TEST_CASE("plan: the memory of NCCL is a part of it for runs that use NCCL") {
  RunCosts costs = plan_of(published_models().front());
  PlanWords words{"1024 ranks", "a step", ""};
  words.nccl = true;
  std::ostringstream text, json;
  print_plan(text, words, costs);
  CHECK(text.str().find("NCCL's buffers about") != std::string::npos);
  print_plan_json(json, words, costs);
  const Json object = parse_json(json.str(), "plan");
  const Json& first = object["classes"].at(object["class_of_rank"].front().get<std::size_t>());
  CHECK(first["bytes"]["NCCL's buffers about"] == costs.nccl_bytes(0));
  CHECK(costs.nccl_bytes(0) > 0);
}
