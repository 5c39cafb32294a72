#include <doctest/doctest.h>

#include "core/host_wait.h"
#include "core/kernel.h"
#include "model/test_models.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

enum class Experts { plain, latent, gated, gated_alone };
constexpr Experts all_experts[] = {Experts::plain, Experts::latent, Experts::gated, Experts::gated_alone};

ModelConfig moe_config(Experts experts) {
  ModelConfig config = tiny_config("E");
  if (experts == Experts::latent) config.moe.latent_size = 7;
  if (experts == Experts::gated || experts == Experts::gated_alone) config.moe.gate = GateActivation::silu;
  if (experts == Experts::gated_alone) {
    config.moe.shared_expert_intermediate_size = 0;
    config.moe.scores = RouterScores::softmax;
    config.moe.correction_bias = config.moe.router_in_f32 = false;
  }
  return config;
}

/// A norm and an MoE block with its residual sum.
Stack one_block(const ModelConfig& config, DType dtype, Device device) {
  return {config, dtype, device, {{{0, 1, false, false}}, {}}};
}

struct Pass {
  Tensor y, dx, counts, losses, totals;
  std::vector<Tensor> gradients;
};

Pass forward_backward(Stack& model, const Tensor& rows, const Tensor& dy, const Sequences& sequences) {
  const Var x = make_result(rows.to(model.device()), true);
  const Tensor own_dy = dy.to(model.device());
  reset_host_waits();
  Tape tape;
  Context ctx{.tape = &tape};
  BlockRecords records = model.make_records();
  const Var y = model.forward(ctx, {.ids = {}, .residual = x, .sequences = sequences, .records = &records});
  tape.backward(y, own_dy);
  CHECK(host_waits().empty());
  const MoeRecord& record = *moe_records(records).at(0);
  return {y.value(),
          x.node()->take(),
          record.sums.counts,
          record.sums.losses,
          model.moe_layers().at(0)->totals().sums,
          gradients(model)};
}

}  // namespace

TEST_CASE("moe: a block on a device has the bits of the CPU, and the host waits for nothing") {
  const Sequences sequences = Sequences::of_lengths(std::vector<std::int64_t>{7, 0, 12});
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Experts experts : all_experts)
      for (const bool checkpointing : {false, true}) {
        CAPTURE(dtype);
        CAPTURE(static_cast<int>(experts));
        CAPTURE(checkpointing);
        const ModelConfig config = moe_config(experts);
        Stack on_cpu = one_block(config, dtype, Device::cpu),
              guarded = one_block(config, dtype, Device::guard);
        randomise(on_cpu, 5);
        copy_weights(guarded, on_cpu);
        for (Stack* model : {&on_cpu, &guarded}) {
          RouterOptions& o = model->moe_layers().at(0)->router();
          o.aux_loss_coef = 0.3;
          o.seq_aux_loss_coef = 0.2;
          o.global_aux_loss_coef = 0.4;
          o.z_loss_coef = 0.1;
          model->activation_checkpointing = checkpointing;
        }
        const Tensor rows = random_tensor({19, config.hidden_size}, dtype, 6),
                     dy = random_tensor({19, config.hidden_size}, dtype, 7);
        const Pass want = forward_backward(on_cpu, rows, dy, sequences),
                   got = forward_backward(guarded, rows, dy, sequences);
        CHECK_BITS(got.y, want.y);
        CHECK_BITS(got.dx, want.dx);
        CHECK_BITS(got.counts, want.counts);
        CHECK_BITS(got.losses, want.losses);
        CHECK_BITS(got.totals, want.totals);
        REQUIRE(got.gradients.size() == want.gradients.size());
        for (std::size_t i = 0; i < want.gradients.size(); ++i) {
          CAPTURE(on_cpu.parameters().all()[i].name);
          REQUIRE(got.gradients[i].defined() == want.gradients[i].defined());
          if (want.gradients[i]) CHECK_BITS(got.gradients[i], want.gradients[i]);
        }
      }
}

TEST_CASE("moe: a block on cuda is close to that of the CPU, and the host waits for nothing" *
          doctest::test_suite("cuda")) {
  for (const char* op :
       {"gated_activation", "grouped_linear", "linear", "matmul", "permute", "relu2", "rmsnorm", "router"})
    if (!has_cuda() || !runs_on_cuda(op)) return;
  const Sequences sequences = Sequences::of_lengths(std::vector<std::int64_t>{7, 0, 12});
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Experts experts : all_experts)
      for (const bool losses : {false, true}) {
        CAPTURE(dtype);
        CAPTURE(static_cast<int>(experts));
        CAPTURE(losses);
        const ModelConfig config = moe_config(experts);
        Stack on_cpu = one_block(config, dtype, Device::cpu);
        randomise(on_cpu, 5);
        const auto prepare = [&](Stack& model) {
          copy_weights(model, on_cpu);
          RouterOptions& o = model.moe_layers().at(0)->router();
          o.aux_loss_coef = losses ? 0.3 : 0;
          o.seq_aux_loss_coef = losses ? 0.2 : 0;
          o.global_aux_loss_coef = losses ? 0.4 : 0;
          o.z_loss_coef = losses ? 0.1 : 0;
          model.activation_checkpointing = losses;
        };
        Stack first = one_block(config, dtype, Device::cuda), second = one_block(config, dtype, Device::cuda);
        for (Stack* model : {&first, &second, &on_cpu}) prepare(*model);
        const Tensor rows = random_tensor({19, config.hidden_size}, dtype, 6),
                     dy = random_tensor({19, config.hidden_size}, dtype, 7);
        const Pass want = forward_backward(on_cpu, rows, dy, sequences),
                   got = forward_backward(first, rows, dy, sequences),
                   again = forward_backward(second, rows, dy, sequences);
        CHECK_BITS(got.counts, want.counts);
        REQUIRE(got.totals.defined() == losses);
        if (losses) CHECK_BITS(got.totals, want.totals);
        // A handful of operations one after the other, each of which rounds.
        const double tolerance = dtype == DType::f32 ? 64 * 0x1p-24 : 8 * 0x1p-9;
        CHECK_CLOSE(got.losses, want.losses, (Tol{tolerance, 0}));
        CHECK(relative_error(got.y, want.y) < tolerance);
        CHECK(relative_error(got.dx, want.dx) < tolerance);
        CHECK_BITS(again.y, got.y);
        CHECK_BITS(again.dx, got.dx);
        for (std::size_t i = 0; i < want.gradients.size(); ++i) {
          CAPTURE(on_cpu.parameters().all()[i].name);
          REQUIRE(got.gradients[i].defined() == want.gradients[i].defined());
          if (!want.gradients[i]) continue;
          CHECK(relative_error(got.gradients[i], want.gradients[i]) < tolerance);
          CHECK_BITS(again.gradients[i], got.gradients[i]);
        }
      }
}
