#include <cmath>
#include <memory>

#include "core/variants.h"
#include "ops/bench_support.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"

namespace nemocube::rmsnorm_bench {
namespace {

constexpr double eps = 1e-5;

struct Work {
  NormForward forward;
  NormBackward backward;
};

std::shared_ptr<Work> prepare(std::int64_t rows, std::int64_t cols, const BenchOptions& o) {
  const auto normal = [&](const Shape& shape, const char* name) { return bench::normal(o, shape, name); };
  auto w = std::make_shared<Work>();
  NormForward& f = w->forward;
  f = norm_forward_operands(NormForm::plain, normal({rows, cols}, "x"), normal({rows, cols}, "residual"),
                            normal({cols}, "weight"), eps);
  rmsnorm_forward(f);
  NormBackward& b = w->backward;
  b.dx = Tensor::empty({rows, cols}, o.dtype, o.device);
  b.dw.to = Tensor::empty({cols}, accumulate_dtype(o.dtype), o.device);
  b.dy = normal({rows, cols}, "dy");
  b.extra = normal({rows, cols}, "extra");
  b.x = f.sum;
  b.weight = f.weight;
  b.inv = f.inv;
  return w;
}

/// Checks y, and dx when `gradient`, of the last row.
bool verify(const Work& w, bool gradient) {
  const NormForward& f = w.forward;
  const NormBackward& b = w.backward;
  const std::int64_t cols = f.x.cols(), last = f.x.rows() - 1;
  const auto row = [&](const Tensor& t) { return t.narrow(0, last, 1).to_vector(); };
  const auto s = row(f.sum), y = row(f.y), dy = row(b.dy), extra = row(b.extra);
  const auto dx = gradient ? row(b.dx) : std::vector<double>(s.size());
  const auto weight = f.weight.to_vector();
  double squares = 0, dot = 0;
  for (std::size_t c = 0; c < s.size(); ++c) squares += s[c] * s[c];
  const double inv = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
  for (std::size_t c = 0; c < s.size(); ++c) dot += weight[c] * dy[c] * s[c] * inv;
  const double tolerance = f.x.dtype() == DType::bf16 ? 2e-2 : 1e-4;
  for (std::size_t c = 0; c < s.size(); ++c) {
    const double n = s[c] * inv, want = n * weight[c];
    const double want_dx = inv * (weight[c] * dy[c] - n * dot / static_cast<double>(cols)) + extra[c];
    if (!bench::close(y[c], want, tolerance)) return false;
    if (gradient && !bench::close(dx[c], want_dx, tolerance)) return false;
  }
  return true;
}

/// Forward and backward through the tape, by a variant of residual_rmsnorm.
void run_variant(Work& w, const KernelChoice& choice) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  ctx.kernels = &choice;
  const Var x = bench::intermediate(w.forward.x), residual = bench::intermediate(w.forward.residual);
  const Var weight = Var::leaf(w.forward.weight);
  const ResidualNorm out = residual_rmsnorm(ctx, x, residual, weight, eps);
  const std::vector<Var> outputs{out.normed, out.sum};
  const std::vector<Tensor> gradients{w.backward.dy, w.backward.extra};
  tape.backward(outputs, gradients);
  w.forward.y = out.normed.value();
  w.forward.sum = out.sum.value();
  w.backward.dx = x.node()->grad();
}

const RegisterBench registration("rmsnorm", [](const BenchOptions& o) {
  std::vector<BenchCase> list;
  using Size = std::pair<std::int64_t, std::int64_t>;
  // Emulated: the hidden size of Nemotron 3 Nano.
  const std::vector<Size> sizes = o.small      ? std::vector<Size>{{65, 96}}
                                  : o.emulated ? std::vector<Size>{{512, 2688}}
                                  : o.nano     ? std::vector<Size>{{8192, 2688}}
                                               : std::vector<Size>{{2048, 512}, {16384, 2048}};
  for (const auto& [rows, cols] : sizes) {
    const auto w = prepare(rows, cols, o);
    const NormForward& f = w->forward;
    const double x = bench::bytes_of(f.x), parameter = bench::bytes_of(f.weight),
                 rows_out = bench::bytes_of(f.inv);
    // Forward: x, residual and weight in, y, sum and inv_rms out. Backward: dy, the gradient of sum, sum,
    // weight and inv_rms in, dx (of both x and residual) and dw out.
    const double fused = 4 * x + parameter + rows_out, backward = fused + bench::bytes_of(w->backward.dw.to);
    const BenchShape shape{{"rows", rows}, {"cols", cols}};
    list.push_back({"fused forward", shape, fused, 0, [w] { rmsnorm_forward(w->forward); },
                    [w] { return verify(*w, false); }});
    list.push_back({"fused backward", shape, backward, 0, [w] { rmsnorm_backward(w->backward); },
                    [w] { return verify(*w, true); }});
    NormForward plain = f;
    plain.x = f.sum;
    plain.sum = plain.residual = Tensor();
    list.push_back({"forward", shape, fused - 2 * x, 0, [plain] { rmsnorm_forward(plain); },
                    [w] { return verify(*w, false); }});
    if (!o.nano) {
      NormForward bare = plain;
      bare.weight = Tensor();
      bare.y = Tensor::empty(f.y.shape(), f.y.dtype(), f.y.device());
      rmsnorm_forward(bare);
      // What is checked is the same as with a weight of ones.
      const auto of_ones = std::make_shared<Work>(*w);
      of_ones->forward.y = bare.y;
      of_ones->forward.weight = Tensor::empty({cols}, o.dtype, Device::cpu);
      of_ones->forward.weight.fill(1);
      NormBackward& back = of_ones->backward;
      back.weight = Tensor();
      back.dw = {};
      back.dx = Tensor::empty(f.y.shape(), f.y.dtype(), f.y.device());
      list.push_back({"forward, no weight", shape, 2 * x + rows_out, 0, [bare] { rmsnorm_forward(bare); },
                      [of_ones] { return verify(*of_ones, false); }});
      list.push_back({"fused backward, no weight", shape, 4 * x + rows_out, 0,
                      [of_ones] { rmsnorm_backward(of_ones->backward); },
                      [of_ones] { return verify(*of_ones, true); }});
    }
    for (const std::string& variant : kernel_variants().at("rmsnorm")) {
      const auto own = prepare(rows, cols, o);
      KernelChoice choice;
      choice.by_op["rmsnorm"] = variant;
      list.push_back({cat(variant, " forward+backward"), shape, fused + backward, 0,
                      [own, choice] { run_variant(*own, choice); }, [own] { return verify(*own, true); }});
    }
  }
  return list;
});

}  // namespace
}  // namespace nemocube::rmsnorm_bench
