#include <doctest/doctest.h>

#include "model/test_models.h"
#include "parallel/context_parallel/attention_cores.h"
#include "parallel/context_parallel/dealt_heads.h"
#include "parallel/context_parallel/mamba_core.h"
#include "parallel/context_parallel/sequence_cut.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Heads and groups that divide by 1, 2, 3, 4 and 8.
ModelConfig config_for(std::int64_t ranks) {
  ModelConfig config = tiny_config("M*-EM*");
  config.mamba.num_heads = 24;
  config.mamba.n_groups = ranks % 3 == 0 ? 3 : 2;
  check_context_parallel(config, 1, ranks);
  return config;
}

void install(Stack& model, Communicator& cp, AttentionCore (*attention_core)(Communicator&)) {
  model.token_rows = [ranks = cp.size(), rank = cp.rank()](const Sequences& whole) {
    return SequenceCut(whole, ranks, rank).local();
  };
  for (AttentionMixer* mixer : model.mixers<AttentionMixer>())
    mixer->set_core(attention_core(cp), model.token_rows);
  for (MambaMixer* mixer : model.mixers<MambaMixer>()) mixer->set_core_runner(context_parallel_mamba(cp));
  for (MoeMixer* mixer : model.moe_layers()) mixer->set_rows(model.token_rows);
}

}  // namespace

TEST_CASE("context parallel: a model gives loss and gradients of one device") {
  Communicator& cp = test_world().communicator();
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 1e-5}}) {
    Stack alone(config_for(cp.size()), dtype, Device::cpu), shared(config_for(cp.size()), dtype, Device::cpu);
    randomise(alone, 3);
    randomise(shared, 3);
    for (AttentionCore (*core)(Communicator&) : {&ring_attention, &all_gather_attention}) {
      install(shared, cp, core);
      for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{21, 0, 5, 1, 40}, {3}, {0}})
        for (const bool checkpointing : {false, true}) {
          CAPTURE(dtype);
          CAPTURE(lengths.size());
          CAPTURE(checkpointing);
          shared.activation_checkpointing = checkpointing;
          const TestBatch whole = random_batch(alone.config(), lengths, 4);
          const SequenceCut cut(whole.sequences, cp.size(), cp.rank());
          const TestBatch own{cut.own(whole.ids), cut.own(whole.labels), whole.sequences};
          alone.parameters().clear_gradients();
          shared.parameters().clear_gradients();
          const double want = loss_and_gradients(alone, whole);
          const Tensor loss = Tensor::scalar(loss_and_gradients(shared, own), DType::f64, Device::cpu);
          cp.all_reduce(loss);
          CHECK(loss.item<double>() == doctest::Approx(want).epsilon(tolerance));
          for (std::size_t i = 0; i < alone.parameters().all().size(); ++i) {
            const Parameter &one = alone.parameters().all()[i], &part = shared.parameters().all()[i];
            if (!one.node || !one.node->filled()) continue;
            CAPTURE(one.name);
            REQUIRE(part.node->filled());
            cp.all_reduce(part.node->grad());
            CHECK(relative_error(part.node->grad(), one.node->grad()) < tolerance);
          }
        }
    }
  }
}
