#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/rope/rope.h"
#include "ops/rope/rope_kernels.h"

namespace nemocube::rope_bench {
namespace {

struct Size {
  std::int64_t tokens, heads, kv_heads, head_dim;
};

struct Work {
  RotaryFrequencies frequencies;
  Sequences sequences;
  Tensor inverse;  // on the device
  RopeOperands forward, backward;
};

std::shared_ptr<Work> prepare(const Size& s, const BenchOptions& o) {
  const auto normal = [&](std::int64_t heads, const char* name) {
    return bench::normal(o, {s.tokens, heads * s.head_dim}, name);
  };
  const auto like = [](const Tensor& t) { return Tensor::empty(t.shape(), t.dtype(), t.device()); };
  auto w = std::make_shared<Work>();
  // As of Llama 3.1 8B, whose theta this is.
  for (std::int64_t i = 0; i < s.head_dim; i += 2)
    w->frequencies.inverse.push_back(
        std::pow(500000.0, -static_cast<double>(i) / static_cast<double>(s.head_dim)));
  w->sequences = Sequences::uniform(1, s.tokens);
  w->inverse = Tensor::from(w->frequencies.inverse, {s.head_dim / 2}).to(o.device);
  RopeOperands& f = w->forward;
  f = {.q = normal(s.heads, "q"), .k = normal(s.kv_heads, "k"), .head_dim = s.head_dim};
  f.q_out = like(f.q);
  f.k_out = like(f.k);
  f.table = Tensor::empty({s.tokens, s.head_dim}, accumulate_dtype(o.dtype), o.device);
  rope_table(f.table, w->sequences.positions_on(o.device), w->inverse, w->frequencies.attention_factor);
  RopeOperands& b = w->backward;
  b = {.q = normal(s.heads, "dq"),
       .k = normal(s.kv_heads, "dk"),
       .table = f.table,
       .head_dim = s.head_dim,
       .back = true};
  b.q_out = like(b.q);
  b.k_out = like(b.k);
  return w;
}

/// Checks the last head of q and the first of k, of the last row.
bool verify(const RopeOperands& o, const RotaryFrequencies& frequencies) {
  const std::size_t pairs = frequencies.inverse.size();
  const auto position = static_cast<double>(o.q.rows() - 1);
  const double tolerance = o.q.dtype() == DType::bf16 ? 1e-2 : 1e-6;
  const auto close = [&](const Tensor& out, const Tensor& in, std::int64_t head) {
    const auto values = [&](const Tensor& t) {
      return t.narrow(0, t.rows() - 1, 1).narrow(-1, head * o.head_dim, o.head_dim).to_vector();
    };
    const auto x = values(in), y = values(out);
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = (o.back ? -1 : 1) * position * frequencies.inverse[i];
      const double c = std::cos(angle), z = std::sin(angle);
      if (!bench::close(y[i], x[i] * c - x[i + pairs] * z, tolerance) ||
          !bench::close(y[i + pairs], x[i + pairs] * c + x[i] * z, tolerance))
        return false;
    }
    return true;
  };
  return close(o.q_out, o.q, o.q.cols() / o.head_dim - 1) && close(o.k_out, o.k, 0);
}

/// Forward and backward through the tape, with the table that the first call has made.
void run_recorded(Work& w) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var q = bench::intermediate(w.forward.q), k = bench::intermediate(w.forward.k);
  const RotatedHeads y = rope(ctx, q, k, w.forward.head_dim, w.frequencies, w.sequences);
  const std::vector<Var> outputs{y.q, y.k};
  const std::vector<Tensor> gradients{w.backward.q, w.backward.k};
  tape.backward(outputs, gradients);
  w.forward.q_out = y.q.value();
  w.forward.k_out = y.k.value();
  w.backward.q_out = q.node()->grad();
  w.backward.k_out = k.node()->grad();
}

const RegisterBench registration("rope", [](const BenchOptions& o) {
  std::vector<BenchCase> list;
  // Heads of Llama 3.1 8B.
  const std::vector<Size> sizes = o.small      ? std::vector<Size>{{65, 3, 1, 16}}
                                  : o.emulated ? std::vector<Size>{{192, 32, 8, 128}}
                                               : std::vector<Size>{{4096, 32, 8, 128}};
  for (const Size& s : sizes) {
    const auto w = prepare(s, o);
    const RopeOperands& f = w->forward;
    // q and k in and out, and the table in.
    const double rotation = bench::bytes_of(f.q, f.k, f.q_out, f.k_out, f.table);
    const BenchShape shape{
        {"tokens", s.tokens}, {"heads", s.heads}, {"kv_heads", s.kv_heads}, {"head_dim", s.head_dim}};
    const auto check = [w](const RopeOperands& called) { return verify(called, w->frequencies); };
    list.push_back({"forward", shape, rotation, 0, [w] { rope_rotate(w->forward); },
                    [w, check] { return check(w->forward); }});
    list.push_back({"backward", shape, rotation, 0, [w] { rope_rotate(w->backward); },
                    [w, check] { return check(w->backward); }});
    const Tensor positions = w->sequences.positions_on(o.device);
    list.push_back({"table", shape, bench::bytes_of(positions, w->inverse, f.table), 0,
                    [w, positions] { rope_table(w->forward.table, positions, w->inverse, 1); },
                    [w, check] {
                      rope_rotate(w->forward);
                      return check(w->forward);
                    }});
    const auto own = prepare(s, o);
    run_recorded(*own);
    list.push_back({"forward+backward", shape, 2 * rotation, 0, [own] { run_recorded(*own); },
                    [own, check] { return check(own->forward) && check(own->backward); }});
  }
  return list;
});

}  // namespace
}  // namespace nemocube::rope_bench
