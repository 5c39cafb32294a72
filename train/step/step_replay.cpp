#include "train/step/step_replay.h"

#include "core/log.h"
#include "model/blocks/attention/rope_config.h"

namespace nemocube {
namespace {

/// Why steps of a plan cannot be captured, however they are called; empty where they may be.
std::string refusal_of(const ParallelPlan& plan, const ModelSetup& setup) {
  if (plan.grid.cp > 1)
    return "with context parallelism the rows of a rank depend on the lengths of sequences";
  for (const BlockVariant& blocks : setup.variants())
    if (depends_on_batch(blocks.config->attention.rope))
      return "dynamic and longrope rotary embeddings depend on the lengths of sequences";
  return {};
}

// Where what one microbatch begins is taken up by the next: memory, reductions.
bool are_whole(const ParallelPlan& plan) {
  const PipelinePlan& p = plan.pipeline;
  const bool one_by_one = std::ssize(p.stages) == 1 && p.kind == ScheduleKind::one_f_one_b && !p.custom;
  return !one_by_one || plan.data.level >= ZeroLevel::gradients || !plan.data.reduce_last_only;
}

}  // namespace

StepReplay::StepReplay(ParallelModel& parallel)
    : parallel_(parallel),
      whole_steps_(are_whole(parallel.plan())),
      refusal_(refusal_of(parallel.plan(), parallel.model().setup())),
      graphs_(parallel.model().parameters(), parallel.all()) {
  const Device device = parallel.model().device();
  require(device.is_cuda(), "cuda_graphs: want a model on a CUDA device, got ", device);
}

bool StepReplay::begin_step(bool fixed_sizes, double loss_scale) {
  const std::string reason = !refusal_.empty() ? refusal_
                             : fixed_sizes     ? ""
                                               : "a microbatch is larger than the others may be";
  if (!reason.empty()) {
    if (parallel_.all().rank() == 0) graphs_.say_refused("a step", reason);
    return false;
  }
  const Stack& model = parallel_.model();
  if (!loss_scale_) loss_scale_ = Tensor::empty({1}, DType::f64, model.device());
  loss_scale_.fill(loss_scale);
  if (tensors_)
    tensors_->reset(model);
  else
    tensors_.emplace(model);
  return true;
}

const MicrobatchRows& StepReplay::place(const MicrobatchRows& rows, std::int64_t number) {
  const std::array<std::int64_t, 4> key{number, rows.sequences.tokens(), rows.sequences.count(),
                                        rows.label_count()};
  if (const auto found = places_.find(key); found != places_.end()) {
    found->second.become(rows);
    return found->second;
  }
  MicrobatchRows made = rows.to(parallel_.model().device());
  made.sequences = rows.sequences.clone();
  return places_.emplace(key, std::move(made)).first->second;
}

}  // namespace nemocube
