#include <doctest/doctest.h>

#include "model/test_models.h"
#include "parallel/context_parallel/context_parallel.h"
#include "parallel/tensor_parallel/cuts.h"
#include "parallel/tensor_parallel/install.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("tensor and context parallelism are installed in any order") {
  World& world = test_world();
  if (world.size() != 4) return;
  ModelConfig config = tiny_config("*E-E");
  config.moe.shared_expert_intermediate_size = 10;
  const TensorParallelPlan plan(config, true, {});
  const HeadReplicas replicas = head_replicas(config, plan, 2);
  const GridSizes sizes{.tp = 2, .cp = 2, .kv_replicas = replicas.kv, .state_replicas = replicas.state};
  const ProcessGroups groups(world, make_grid(sizes));
  const TensorCuts cuts(config, plan, sizes);
  const GridPlace place = place_of(sizes, world.rank());
  const TestBatch batch = random_batch(config, {9, 0, 14, 1}, 4);

  const auto hidden = [&](bool context_first) {
    Stack model(config, DType::f64, Device::cpu,
                {{ModelChunk{}}, [&](const TensorSpec& spec) { return cuts(spec, place).shard; }});
    randomise(model, 3);
    std::unique_ptr<ContextParallel> context;
    std::unique_ptr<TensorParallel> tensor;
    const auto install_context = [&] {
      context = std::make_unique<ContextParallel>(model, groups[Group::cp], ContextAttention::all_gather);
    };
    if (context_first) install_context();
    tensor = std::make_unique<TensorParallel>(model, plan, groups,
                                              [&](const Sequences& whole) { return context->own(whole); });
    if (!context_first) install_context();
    Context ctx;
    return model.hidden(ctx, context->own_tokens(batch.ids, batch.sequences), batch.sequences)
        .value()
        .to_vector();
  };
  const std::vector<double> want = hidden(true);
  CHECK(hidden(false) == want);
  CHECK(std::ssize(want) > 0);
}
