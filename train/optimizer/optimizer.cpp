#include "train/optimizer/optimizer.h"

#include "core/allocation_owner.h"

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

void Optimizer::take_weights() {
  for (const Slot& slot : slots_)
    if (const Tensor weights = copy_of(slot)) slot.master.copy_from(weights);
}

std::vector<Tensor> Optimizer::gradients() const {
  std::vector<Tensor> all;
  for (const Slot& slot : slots_) all.push_back(slot.parameter->gradient());
  return all;
}

SgdOptions Optimizer::sgd_options() const {
  return {.momentum = options_.momentum, .first = steps_ == 0, .nesterov = options_.nesterov};
}

AdamWOptions Optimizer::adamw_options() const {
  return {.beta1 = options_.beta1,
          .beta2 = options_.beta2,
          .eps = options_.eps,
          .decoupled = options_.kind == OptimizerKind::adamw,
          .step = steps_ + 1};
}

void Optimizer::prepare(double lr, double weight_decay) {
  if (slots_.empty()) return;
  const auto with_rates = [&](auto options) {
    options.lr = lr;
    options.weight_decay = weight_decay;
    return options;
  };
  const Tensor values = options_.kind == OptimizerKind::sgd ? sgd_schedule(with_rates(sgd_options()))
                                                            : adamw_schedule(with_rates(adamw_options()));
  // One tensor that lasts, so that the same work can be queued again.
  if (!schedule_) schedule_ = Tensor::empty(values.shape(), values.dtype(), slots_[0].master.device());
  schedule_.copy_from(values);
}

void Optimizer::step(const UpdateGate& gate) {
  if (slots_.empty()) return;
  expect(schedule_.defined(), "a step of the optimizer that was not prepared");
  if (options_.kind == OptimizerKind::sgd)
    step_sgd(gate);
  else
    step_adamw(gate);
}

Tensor Optimizer::copy_of(const Slot& slot) {
  return slot.master.same_storage(slot.parameter->own) ? Tensor() : slot.parameter->own;
}

void Optimizer::step_sgd(const UpdateGate& gate) {
  std::vector<SgdRange> ranges;
  for (const Slot& s : slots_)
    ranges.push_back({s.master, s.first, s.parameter->gradient(), copy_of(s), s.factors.lr,
                      s.factors.weight_decay, s.parameter->number});
  sgd_step(ranges, sgd_options(), schedule_, gate);
}

void Optimizer::step_adamw(const UpdateGate& gate) {
  std::vector<AdamWRange> ranges;
  for (const Slot& s : slots_)
    ranges.push_back({s.master, s.first, s.second, s.parameter->gradient(), copy_of(s), s.factors.lr,
                      s.factors.weight_decay, s.parameter->number});
  adamw_step(ranges, adamw_options(), schedule_, gate);
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
