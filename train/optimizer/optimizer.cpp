#include "train/optimizer/optimizer.h"

#include "core/allocation_owner.h"
#include "ops/adamw/adamw.h"
#include "ops/sgd/sgd.h"

namespace nemocube {

std::string_view operation_of(OptimizerKind kind) { return kind == OptimizerKind::sgd ? "sgd" : "adamw"; }

Optimizer::Optimizer(ParameterStore& store, const OptimizerOptions& options, const GroupRule& rule)
    : options_(options) {
  const AllocationOwner owner("optimizer state");
  for (Parameter& p : store.all()) {
    if (!p.wants_grad()) continue;
    Slot slot{&p, rule ? rule(p) : GroupFactors{}, p.own, {}, {}};
    const DType dtype = accumulate_dtype(p.own.dtype());
    if (p.own.dtype() == DType::bf16) slot.master = p.own.to(DType::f32);
    const bool sgd = options.kind == OptimizerKind::sgd;
    if (!sgd || options.momentum != 0) slot.first = Tensor::zeros(p.own.shape(), dtype, p.own.device());
    if (!sgd) slot.second = Tensor::zeros(p.own.shape(), dtype, p.own.device());
    slots_.push_back(std::move(slot));
  }
}

std::vector<Tensor> Optimizer::gradients() const {
  std::vector<Tensor> all;
  for (const Slot& slot : slots_) all.push_back(slot.parameter->gradient());
  return all;
}

void Optimizer::step(double lr, double weight_decay, const UpdateGate& gate) {
  if (slots_.empty()) return;
  const auto copy_of = [](const Slot& slot) {
    return slot.master.same_storage(slot.parameter->own) ? Tensor() : slot.parameter->own;
  };
  // One tensor that lasts, so that the same work could be queued again.
  const auto set_schedule = [this](const Tensor& values) {
    if (!schedule_) schedule_ = Tensor::empty(values.shape(), values.dtype(), slots_[0].master.device());
    schedule_.copy_from(values);
  };
  if (options_.kind == OptimizerKind::sgd) {
    const SgdOptions o{.lr = lr,
                       .momentum = options_.momentum,
                       .weight_decay = weight_decay,
                       .first = steps_ == 0,
                       .nesterov = options_.nesterov};
    std::vector<SgdRange> ranges;
    for (const Slot& s : slots_)
      ranges.push_back({s.master, s.first, s.parameter->gradient(), copy_of(s), s.factors.lr,
                        s.factors.weight_decay, s.parameter->number});
    set_schedule(sgd_schedule(o));
    sgd_step(ranges, o, schedule_, gate);
  } else {
    const AdamWOptions o{.lr = lr,
                         .beta1 = options_.beta1,
                         .beta2 = options_.beta2,
                         .eps = options_.eps,
                         .weight_decay = weight_decay,
                         .decoupled = options_.kind == OptimizerKind::adamw,
                         .step = steps_ + 1};
    std::vector<AdamWRange> ranges;
    for (const Slot& s : slots_)
      ranges.push_back({s.master, s.first, s.second, s.parameter->gradient(), copy_of(s), s.factors.lr,
                        s.factors.weight_decay, s.parameter->number});
    set_schedule(adamw_schedule(o));
    adamw_step(ranges, o, schedule_, gate);
  }
}

std::vector<StateTensor> Optimizer::state() const {
  const bool sgd = options_.kind == OptimizerKind::sgd;
  std::vector<StateTensor> all;
  for (const Slot& slot : slots_) {
    const Parameter& p = *slot.parameter;
    const auto add = [&](const char* kind, const Tensor& value) {
      all.push_back({kind + p.name, value, p.shard});
    };
    if (slot.first) add(sgd ? "momentum." : "exp_avg.", slot.first);
    if (slot.second) add("exp_avg_sq.", slot.second);
    if (!slot.master.same_storage(p.own)) add("master.", slot.master);
  }
  return all;
}

}  // namespace nemocube
