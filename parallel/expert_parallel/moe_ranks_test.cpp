#include <doctest/doctest.h>

#include "model/test_models.h"
#include "parallel/expert_parallel/make_dispatcher.h"
#include "parallel/expert_parallel/test_grids.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelConfig moe_config(bool latent) {
  ModelConfig config = tiny_config("E");
  config.moe.n_routed_experts = 3 * test_world().size();
  config.moe.num_experts_per_tok = 3;
  config.moe.intermediate_size = 9;  // uneven slices
  config.moe.latent_size = latent ? 7 : 0;
  return config;
}

/// A norm and an MoE block with its residual sum.
ModelPart one_block() { return {{{0, 1, false, false}}, {}}; }

ModelPart block_of_rank(const ModelConfig& config, const ExpertGrid& grid) {
  const ExpertGroups groups = grid.groups();
  const Range here = experts_of(config.moe.n_routed_experts, groups.ep.size(), groups.ep.rank());
  const Range slice = slice_of(config.moe.intermediate_size, groups.expt_tp);
  ModelPart part = one_block();
  part.shard = [here, slice](const TensorSpec& spec) {
    const Shard whole(spec.shape);
    if (!spec.experts) return whole;
    return whole.cut(0, here).cut(spec.name.ends_with("up_proj") ? 1 : 2, slice);
  };
  return part;
}

struct Pass {
  Tensor y, dx;
};
Pass forward_backward(Stack& model, const Tensor& rows, const Tensor& dy) {
  const Var x = make_result(rows, true);
  const Sequences sequences = Sequences::uniform(1, rows.rows());
  Tape tape;
  Context ctx{.tape = &tape};
  BlockRecords records = model.make_records();
  const Var y = model.forward(ctx, {.ids = {}, .residual = x, .sequences = sequences, .records = &records});
  tape.backward(y, dy);
  return {y.value(), x.node()->take()};
}

void compare_grid(Stack& whole, const Pass& want, const Tensor& rows, const Tensor& dy,
                  const ExpertGrid& grid, DispatcherKind kind, bool checkpointing) {
  const int rank = test_world().rank();
  std::int64_t first = 0;
  for (int r = 0; r < rank; ++r) first += tokens_of(r);
  const auto own = [&](const Tensor& t) { return t.narrow(0, first, tokens_of(rank)); };

  Stack model(whole.setup(), DType::f64, Device::cpu, block_of_rank(whole.config(), grid));
  for (Parameter& p : model.parameters().all())
    p.value.copy_from(local_part(p.shard, whole.parameters().get(p.name).value));
  model.activation_checkpointing = checkpointing;
  model.moe_layers()[0]->set_dispatcher(
      make_dispatcher(kind, whole.config().moe.n_routed_experts, grid.groups()));
  const Pass got = forward_backward(model, own(rows).clone(), own(dy).clone());
  CHECK(relative_error(got.y, own(want.y)) < 1e-12);
  CHECK(relative_error(got.dx, own(want.dx)) < 1e-12);

  std::int64_t compared = 0;
  for (const Parameter& p : model.parameters().all()) {
    if (!p.node) continue;
    CAPTURE(p.name);
    REQUIRE(p.node->filled());
    const bool routed = p.name.find(".experts.") != std::string::npos;
    const Tensor sum = p.node->grad().clone();
    (routed ? grid.replicas() : test_world().communicator()).all_reduce(sum);
    CHECK(relative_error(sum, local_part(p.shard, whole.parameters().get(p.name).node->grad())) < 1e-12);
    ++compared;
  }
  CHECK(compared == (whole.config().moe.latent_size > 0 ? 8 : 6));
}

}  // namespace

TEST_CASE("expert parallel: an MoE block equals that of one device with all tokens") {
  std::int64_t tokens = 0;
  for (int r = 0; r < test_world().size(); ++r) tokens += tokens_of(r);
  struct Case {
    bool latent, crowded, checkpointing;
    Stack whole{moe_config(latent), DType::f64, Device::cpu, one_block()};
    Pass want{};
  };
  Case cases[] = {{false, false, false}, {true, true, true}};
  const std::int64_t hidden = cases[0].whole.config().hidden_size;
  const Tensor rows = random_tensor({tokens, hidden}, DType::f64, 62),
               dy = random_tensor({tokens, hidden}, DType::f64, 63);
  for (Case& c : cases) {
    randomise(c.whole, 61);
    if (c.crowded) {  // all tokens choose the same experts, the others get nothing
      const Tensor& bias =
          c.whole.parameters().get("backbone.layers.0.mixer.gate.e_score_correction_bias").value;
      for (std::int64_t j = 0; j < c.whole.config().moe.num_experts_per_tok; ++j) bias.data<double>()[j] = 9;
    }
    c.want = forward_backward(c.whole, rows, dy);
  }
  on_expert_grids([&](const ExpertGrid& grid) {
    CAPTURE(grid.text());
    for (Case& c : cases)
      for (const DispatcherKind kind :
           {DispatcherKind::local, DispatcherKind::allgather, DispatcherKind::alltoall}) {
        if (kind == DispatcherKind::local && grid.sizes.ep * grid.sizes.expt_tp > 1) continue;
        CAPTURE(c.latent);
        CAPTURE(static_cast<int>(kind));
        compare_grid(c.whole, c.want, rows, dy, grid, kind, c.checkpointing);
      }
  });
}
