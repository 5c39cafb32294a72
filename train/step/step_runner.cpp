#include "train/step/step_runner.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>

#include "core/add.h"
#include "core/profile.h"
#include "ops/router/router.h"

namespace nemocube {
namespace {

using Kind = Action::Kind;
using Payload = Transfer::Payload;

/// The zone of the passes of one of this rank's chunks: "step/forward" of the first, "step/forward 1" of the second.
Zone& zone_of(const std::string& passes, std::size_t chunk) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Zone>> zones;
  const std::lock_guard lock(mutex);
  auto& [name, zone] = *zones.try_emplace(chunk > 0 ? cat(passes, " ", chunk) : passes).first;
  if (!zone) zone = std::make_unique<Zone>(name.c_str());
  return *zone;
}

Tensor zeros_like(const Tensor& t) { return Tensor::zeros(t.shape(), t.dtype(), t.device()); }

}  // namespace

StepRunner::StepRunner(ParallelModel& parallel, std::span<const TokenBatch> microbatches, double loss_scale,
                       const KernelChoice* kernels)
    : parallel_(parallel),
      model_(parallel.model()),
      batches_(microbatches),
      loss_scale_(loss_scale),
      kernels_(kernels) {
  const NemotronH& model = model_;
  for (std::size_t chunk = 0; chunk < model.part().chunks.size(); ++chunk)
    moe_numbers_.push_back(moe_layer_numbers(model, chunk));
  for (const TokenBatch& batch : microbatches) {
    const auto own = [&](const Tensor& t) { return parallel.own_tokens(t, batch.sequences); };
    OwnRows rows;
    if (model.part().embeddings()) rows.ids = own(batch.ids).to(model.device());
    if (model.part().head()) rows.labels = Labels(own(batch.labels), batch.label_capacity).to(model.device());
    rows_.push_back(std::move(rows));
  }
}

void StepRunner::run(const Program& program, StepTensors& sums) {
  const std::vector<bool> last = last_backward_passes(program);
  for (std::size_t i = 0; i < program.size(); ++i) {
    if (const auto* transfers = std::get_if<Exchange>(&program[i])) {
      parallel_.transfers().exchange(*transfers, [&](const Transfer& t) {
        return parallel_.residual_room(batch(t.microbatch).sequences);
      });
      continue;
    }
    const Action& action = std::get<Action>(program[i]);
    if (action.kind == Kind::forward)
      forward(action);
    else
      backward(action, last[i], sums);
  }
  parallel_.transfers().finish();
  expect(live_.empty(), "a step ends with ", live_.size(), " unfinished microbatches");
}

void StepRunner::forward(const Action& action) {
  const auto& [kind, stage, microbatch] = action;
  const ZoneTimer timer(zone_of("step/forward", parallel_.chunk_of(stage)));
  Live& m = live_[{stage, microbatch}];
  const TokenBatch& tokens = batch(microbatch);
  const std::size_t chunk = parallel_.chunk_of(stage);
  if (stage > 0)
    m.in = make_result(parallel_.transfers().take(Payload::activation, stage - 1, microbatch), true);
  m.records = model_.make_records(chunk);
  const std::vector<MoeRecord*> routers = moe_records(m.records);
  if (!routers.empty())
    m.sums = RouterSums::zeros(std::ssize(routers), model_.config().n_routed_experts, model_.device());
  for (std::size_t i = 0; i < routers.size(); ++i)
    routers[i]->sums = m.sums.layer(static_cast<std::int64_t>(i));
  Context ctx{.tape = &m.tape, .kernels = kernels_};
  m.out = model_.forward(ctx, {.ids = stage == 0 ? own_rows(microbatch).ids : Tensor(),
                               .residual = m.in,
                               .sequences = tokens.sequences,
                               .records = &m.records,
                               .chunk = chunk});
  if (stage == last_stage()) return;
  parallel_.transfers().give(Payload::activation, stage, microbatch, m.out.value());
  m.out = Var(Tensor(), m.out.node());  // the next stage has the values
}

Var StepRunner::start_loss(Context& ctx, Live& m, std::int64_t microbatch, StepTensors& sums) {
  Var loss = model_.loss(ctx, std::exchange(m.out, {}), own_rows(microbatch).labels,
                         batch(microbatch).sequences, loss_scale_);
  if (parallel_.counts_loss()) add_elements(sums.loss(), sums.loss(), loss.value().reshape({1}));
  return loss;
}

void StepRunner::backward(const Action& action, bool last, StepTensors& sums) {
  const auto& [kind, stage, microbatch] = action;
  const ZoneTimer timer(zone_of("step/backward", parallel_.chunk_of(stage)));
  const auto found = live_.find({stage, microbatch});
  expect(found != live_.end(), action, " before its forward pass");
  Live& m = found->second;
  parallel_.data().begin_backward(last);
  if (kind == Kind::backward_weight) {
    m.tape.run_weight_work();
    live_.erase(found);
    return;
  }
  if (kind == Kind::backward_input) m.tape.defer_weight_work();
  Context ctx{.tape = &m.tape, .kernels = kernels_};
  if (stage == last_stage()) {
    const Var loss = start_loss(ctx, m, microbatch, sums);
    m.tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), loss.value().device()));
  } else {
    m.tape.backward(std::exchange(m.out, {}),
                    parallel_.transfers().take(Payload::gradient, stage + 1, microbatch));
  }
  if (stage > 0) {
    const bool reached = m.in.node()->filled();
    parallel_.transfers().give(Payload::gradient, stage, microbatch,
                               reached ? m.in.node()->take() : zeros_like(m.in.value()));
    m.in = {};
  }
  add_sums(m.sums, parallel_.chunk_of(stage), sums);
  if (kind == Kind::backward) live_.erase(found);
}

void StepRunner::add_sums(const RouterSums& own, std::size_t chunk, StepTensors& sums) const {
  if (!own.counts) return;
  // The layers of a chunk follow each other.
  const std::int64_t first = moe_numbers_[chunk].front(), layers = own.counts.dim(0);
  add_counts(sums.counts.narrow(0, first, layers), own.counts);
  // Losses without a coefficient are zero.
  if (std::ranges::any_of(model_.moe_layers(), [](MoeMixer* moe) { return has_losses(moe->router()); })) {
    const Tensor losses = sums.losses_of(first, layers);
    add_elements(losses, losses, own.losses);
  }
}

}  // namespace nemocube
