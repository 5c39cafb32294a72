#include "train/optimizer/optimizer.h"

#include "ops/adamw/adamw.h"
#include "ops/sgd/sgd.h"

namespace nemocube {

Optimizer::Optimizer(ParameterStore& store, const OptimizerOptions& options, const GroupRule& rule)
    : options_(options) {
  for (Parameter& p : store.all()) {
    if (!p.wants_grad()) continue;
    Slot slot{&p, rule ? rule(p) : GroupFactors{}, p.value, {}, {}};
    const DType dtype = accumulate_dtype(p.value.dtype());
    if (p.value.dtype() == DType::bf16) slot.master = p.value.to(DType::f32);
    const bool sgd = options.kind == OptimizerKind::sgd;
    if (!sgd || options.momentum != 0) slot.first = Tensor::zeros(p.value.shape(), dtype);
    if (!sgd) slot.second = Tensor::zeros(p.value.shape(), dtype);
    slots_.push_back(std::move(slot));
  }
}

std::vector<Tensor> Optimizer::gradients() {
  std::vector<Tensor> all;
  for (const Slot& slot : slots_) {
    GradNode& node = *slot.parameter->node;
    if (!node.filled()) node.into().to.zero();
    all.push_back(node.grad());
  }
  return all;
}

const Parameter* Optimizer::step(double lr, double weight_decay, double grad_scale) {
  const std::vector<Tensor> grads = gradients();
  const Parameter* not_finite = nullptr;
  ++steps_;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const Tensor copy = slot.master.same_storage(slot.parameter->value) ? Tensor() : slot.parameter->value;
    bool finite = true;
    const double slot_lr = lr * slot.factors.lr, slot_decay = weight_decay * slot.factors.weight_decay;
    if (options_.kind == OptimizerKind::sgd) {
      SgdOptions o;
      o.lr = slot_lr;
      o.momentum = options_.momentum;
      o.weight_decay = slot_decay;
      o.first = steps_ == 1;
      o.nesterov = options_.nesterov;
      o.grad_scale = grad_scale;
      finite = sgd_step(slot.master, slot.first, grads[i], copy, o);
    } else {
      AdamWOptions o;
      o.lr = slot_lr;
      o.beta1 = options_.beta1;
      o.beta2 = options_.beta2;
      o.eps = options_.eps;
      o.weight_decay = slot_decay;
      o.decoupled = options_.kind == OptimizerKind::adamw;
      o.step = steps_;
      o.grad_scale = grad_scale;
      finite = adamw_step(slot.master, slot.first, slot.second, grads[i], copy, o);
    }
    if (!finite && !not_finite) not_finite = slot.parameter;
  }
  return not_finite;
}

std::vector<StateTensor> Optimizer::state() const {
  const bool sgd = options_.kind == OptimizerKind::sgd;
  std::vector<StateTensor> all;
  for (const Slot& slot : slots_) {
    const std::string& name = slot.parameter->name;
    if (slot.first) all.push_back({(sgd ? "momentum." : "exp_avg.") + name, slot.first});
    if (slot.second) all.push_back({"exp_avg_sq." + name, slot.second});
    if (!slot.master.same_storage(slot.parameter->value)) all.push_back({"master." + name, slot.master});
  }
  return all;
}

}  // namespace nemocube
