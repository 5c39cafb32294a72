#include "tests/support/gradcheck.h"

#include <cmath>

#include "tests/support/compare.h"

namespace nemocube::testing {
namespace {

std::vector<Tensor> cotangents(const std::vector<Var>& outputs, const GradCheckOptions& options) {
  std::vector<Tensor> c;
  for (const Var& y : outputs) {
    c.push_back(random_tensor(y.shape(), DType::f64, options.seed + c.size()));
    if (options.unit_cotangents) c.back().fill(1);
  }
  return c;
}

double objective(const DiffFn& fn, const std::vector<Tensor>& inputs, const GradCheckOptions& options) {
  Context ctx;
  std::vector<Var> vars(inputs.begin(), inputs.end());
  const std::vector<Var> outputs = fn(ctx, vars);
  const std::vector<Tensor> c = cotangents(outputs, options);
  double sum = 0;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const auto y = outputs[k].value().to_vector(), w = c[k].to_vector();
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * w[i];
  }
  return sum;
}

void run_backward(const DiffFn& fn, const std::vector<Var>& vars, const GradCheckOptions& options) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const std::vector<Var> outputs = fn(ctx, vars);
  const std::vector<Tensor> c = cotangents(outputs, options);
  tape.backward(outputs, c);
}

}  // namespace

std::string check_gradients(const DiffFn& fn, const std::vector<Tensor>& inputs, GradCheckOptions options) {
  if (options.wants.empty()) options.wants.assign(inputs.size(), true);
  std::vector<Var> vars;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect(inputs[i].dtype() == DType::f64, "gradient checks want f64 inputs");
    vars.push_back(options.wants[i] ? Var::leaf(inputs[i]) : Var(inputs[i]));
  }
  run_backward(fn, vars, options);
  std::string report;
  std::vector<Tensor> first;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    first.emplace_back();
    if (!options.wants[i]) continue;
    if (!vars[i].node()->filled()) {
      report += cat("input ", i, " got no gradient\n");
      continue;
    }
    first.back() = vars[i].grad().clone();
    const auto analytic = first.back().to_vector();
    Tensor x = inputs[i].clone();
    std::vector<Tensor> moved = inputs;
    moved[i] = x;
    auto* data = x.data<double>();
    std::vector<double> numeric(analytic.size());
    double largest = 1;
    for (std::size_t j = 0; j < analytic.size(); ++j) {
      const double keep = data[j];
      data[j] = keep + options.step;
      const double up = objective(fn, moved, options);
      data[j] = keep - options.step;
      const double down = objective(fn, moved, options);
      data[j] = keep;
      numeric[j] = (up - down) / (2 * options.step);
      largest = std::max(largest, std::abs(numeric[j]));
    }
    for (std::size_t j = 0; j < analytic.size(); ++j)
      if (!close(analytic[j], numeric[j], {0, options.tolerance * largest})) {
        report += cat("input ", i, " element ", j, ": gradient ", analytic[j], ", finite difference ",
                      numeric[j], "\n");
        break;
      }
  }
  run_backward(fn, vars, options);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!options.wants[i] || !first[i].defined()) continue;
    const auto once = first[i].to_vector(), twice = vars[i].grad().to_vector();
    for (std::size_t j = 0; j < once.size(); ++j)
      if (!close(twice[j], 2 * once[j], {1e-9, 1e-12})) {
        report += cat("input ", i, ": a second backward gave ", twice[j], " for twice ", once[j], "\n");
        break;
      }
  }
  return report;
}

}  // namespace nemocube::testing
