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
  const std::vector<Tensor> grads = gradients();
  const std::int64_t step = steps_ + 1;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const Tensor copy = slot.master.same_storage(slot.parameter->own) ? Tensor() : slot.parameter->own;
    UpdateGate own = gate;
    own.finite = gate.finite.narrow(0, slot.parameter->number, 1);
    const double slot_lr = lr * slot.factors.lr, slot_decay = weight_decay * slot.factors.weight_decay;
    if (options_.kind == OptimizerKind::sgd) {
      SgdOptions o;
      o.lr = slot_lr;
      o.momentum = options_.momentum;
      o.weight_decay = slot_decay;
      o.first = step == 1;
      o.nesterov = options_.nesterov;
      sgd_step(slot.master, slot.first, grads[i], copy, o, own);
    } else {
      AdamWOptions o;
      o.lr = slot_lr;
      o.beta1 = options_.beta1;
      o.beta2 = options_.beta2;
      o.eps = options_.eps;
      o.weight_decay = slot_decay;
      o.decoupled = options_.kind == OptimizerKind::adamw;
      o.step = step;
      adamw_step(slot.master, slot.first, slot.second, grads[i], copy, o, own);
    }
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
