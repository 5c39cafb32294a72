#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/layernorm/layernorm.h"
#include "ops/layernorm/layernorm_kernels.h"

namespace nemocube::layernorm_bench {
namespace {

constexpr double eps = 1e-5;

struct Work {
  NormForward forward;
  NormBackward backward;
};

std::shared_ptr<Work> prepare(std::int64_t rows, std::int64_t cols, const BenchOptions& o) {
  const auto normal = [&](const Shape& shape, const char* name) { return bench::normal(o, shape, name); };
  const auto sums = [&] { return Tensor::empty({cols}, accumulate_dtype(o.dtype), o.device); };
  auto w = std::make_shared<Work>();
  NormForward& f = w->forward;
  f = norm_forward_operands(NormForm::centred, normal({rows, cols}, "x"), normal({rows, cols}, "residual"),
                            normal({cols}, "weight"), eps);
  f.bias = normal({cols}, "bias");
  layernorm_forward(f);
  NormBackward& b = w->backward;
  b.dx = Tensor::empty({rows, cols}, o.dtype, o.device);
  b.dw.to = sums();
  b.db.to = sums();
  b.dy = normal({rows, cols}, "dy");
  b.extra = normal({rows, cols}, "extra");
  b.x = f.sum;
  b.weight = f.weight;
  b.mean = f.mean;
  b.inv = f.inv;
  return w;
}

/// Checks y, and dx when `gradient`, of the last row.
bool verify(const Work& w, bool gradient) {
  const NormForward& f = w.forward;
  const NormBackward& b = w.backward;
  const auto row = [&](const Tensor& t) { return t.narrow(0, t.rows() - 1, 1).to_vector(); };
  const auto s = row(f.sum), y = row(f.y), dy = row(b.dy), extra = row(b.extra);
  const auto dx = gradient ? row(b.dx) : std::vector<double>(s.size());
  const auto weight = f.weight.to_vector(), bias = f.bias.to_vector();
  const auto cols = static_cast<double>(s.size());
  double mean = 0, squares = 0, sum_u = 0, dot = 0;
  for (const double v : s) mean += v / cols;
  for (const double v : s) squares += (v - mean) * (v - mean);
  const double inv = 1 / std::sqrt(squares / cols + eps);
  for (std::size_t c = 0; c < s.size(); ++c) {
    sum_u += weight[c] * dy[c];
    dot += weight[c] * dy[c] * (s[c] - mean) * inv;
  }
  const double tolerance = f.x.dtype() == DType::bf16 ? 2e-2 : 1e-4;
  for (std::size_t c = 0; c < s.size(); ++c) {
    const double n = (s[c] - mean) * inv;
    const double want_dx = inv * (weight[c] * dy[c] - sum_u / cols - n * dot / cols) + extra[c];
    if (!bench::close(y[c], n * weight[c] + bias[c], tolerance)) return false;
    if (gradient && !bench::close(dx[c], want_dx, tolerance)) return false;
  }
  return true;
}

/// Forward and backward of residual_layernorm through the tape.
void run_recorded(Work& w) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var x = bench::intermediate(w.forward.x), residual = bench::intermediate(w.forward.residual);
  const Var weight = Var::leaf(w.forward.weight), bias = Var::leaf(w.forward.bias);
  const ResidualNorm out = residual_layernorm(ctx, x, residual, weight, bias, eps);
  const std::vector<Var> outputs{out.normed, out.sum};
  const std::vector<Tensor> gradients{w.backward.dy, w.backward.extra};
  tape.backward(outputs, gradients);
  w.forward.y = out.normed.value();
  w.forward.sum = out.sum.value();
  w.backward.dx = x.node()->grad();
}

const RegisterBench registration("layernorm", [](const BenchOptions& o) {
  std::vector<BenchCase> list;
  using Size = std::pair<std::int64_t, std::int64_t>;
  // 2560: the hidden size of Phi-2.
  const std::vector<Size> sizes = o.small      ? std::vector<Size>{{65, 96}}
                                  : o.emulated ? std::vector<Size>{{512, 2560}}
                                               : std::vector<Size>{{2048, 512}, {16384, 2560}};
  for (const auto& [rows, cols] : sizes) {
    const auto w = prepare(rows, cols, o);
    const NormForward& f = w->forward;
    const double x = bench::bytes_of(f.x), weight = bench::bytes_of(f.weight),
                 rows_out = bench::bytes_of(f.mean, f.inv),
                 sums = bench::bytes_of(w->backward.dw.to, w->backward.db.to);
    // Forward: x, residual, weight and bias in, y, sum, mean and inv_std out. Backward: dy, the gradient of
    // sum, sum, weight, mean and inv_std in, dx (of both x and residual), dw and db out.
    const double forward = 4 * x + 2 * weight + rows_out, backward = 4 * x + weight + rows_out + sums;
    const BenchShape shape{{"rows", rows}, {"cols", cols}};
    list.push_back({"fused forward", shape, forward, 0, [w] { layernorm_forward(w->forward); },
                    [w] { return verify(*w, false); }});
    list.push_back({"fused backward", shape, backward, 0, [w] { layernorm_backward(w->backward); },
                    [w] { return verify(*w, true); }});
    NormForward plain = f;
    plain.x = f.sum;
    plain.sum = plain.residual = Tensor();
    list.push_back({"forward", shape, forward - 2 * x, 0, [plain] { layernorm_forward(plain); },
                    [w] { return verify(*w, false); }});
    const auto own = prepare(rows, cols, o);
    list.push_back({"fused forward+backward", shape, forward + backward, 0, [own] { run_recorded(*own); },
                    [own] { return verify(*own, true); }});
  }
  return list;
});

}  // namespace
}  // namespace nemocube::layernorm_bench
