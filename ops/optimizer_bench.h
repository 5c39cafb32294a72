#pragma once
#include <functional>
#include <span>
#include <vector>

#include "ops/bench_support.h"
#include "ops/open_gate.h"

namespace nemocube::bench {

/// The tensors of an optimizer step over one flat parameter.
struct OptimizerTensors {
  Tensor master, grad;
  std::vector<Tensor> states;  ///< momentum buffer, or first and second moments
  Tensor model_copy;           ///< bf16 when that dtype is measured; else undefined
  UpdateGate gate;
};

constexpr double grad_scale = 0.5;

/// The master weight after the step, for one element, in f64.
using OptimizerDefinition = std::function<double(double master, double grad, std::span<const double> states)>;

/// One step over 50 million elements, fewer where the options ask for that, with `states` state tensors,
/// which are all zero at first.
inline std::vector<BenchCase> optimizer_cases(const BenchOptions& o, int states,
                                              const std::function<void(const OptimizerTensors&)>& step,
                                              const OptimizerDefinition& definition) {
  const std::int64_t n = o.small ? 10000 : o.emulated ? 1'000'000 : 50'000'000;
  const DType dtype = accumulate_dtype(o.dtype);
  const auto uniform = [&](const char* name) {
    const Tensor values = Tensor::zeros({n}, dtype, Device::cpu);
    fill_uniform(values, RandomStream(1, name), -1, 1);
    return values.to(o.device);
  };
  OptimizerTensors t{uniform("master"), uniform("grad"), {}, {}, open_gate(grad_scale, o.device)};
  for (int i = 0; i < states; ++i) t.states.push_back(Tensor::zeros({n}, dtype, o.device));
  if (o.dtype == DType::bf16) t.model_copy = Tensor::zeros({n}, DType::bf16, o.device);

  BenchCase c{t.model_copy ? "with bf16 copy" : "master only", {{"elements", n}}};
  // Master and states are read and written, the gradient is read, the copy written.
  c.bytes =
      bytes_of(t.grad) + 2 * (1 + states) * bytes_of(t.master) + (t.model_copy ? bytes_of(t.model_copy) : 0);
  c.run = [t, step] { step(t); };
  c.verify = [t, step, definition] {
    const auto head = [](const Tensor& all) { return all.narrow(0, 0, 1000).to_vector(); };
    const auto before = head(t.master), grad = head(t.grad);
    std::vector<std::vector<double>> state_values;
    for (const Tensor& s : t.states) state_values.push_back(head(s));
    step(t);
    const auto after = head(t.master);
    for (std::size_t i = 0; i < after.size(); ++i) {
      std::vector<double> element;
      for (const auto& values : state_values) element.push_back(values[i]);
      if (!close(after[i], definition(before[i], grad[i], element), 1e-6)) return false;
    }
    return !t.model_copy ||
           close(t.model_copy.narrow(0, 0, 1000).to(DType::f32), t.master.narrow(0, 0, 1000), 0x1p-8);
  };
  return {c};
}

}  // namespace nemocube::bench
