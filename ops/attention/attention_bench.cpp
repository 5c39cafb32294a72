#include <cmath>
#include <memory>

#include "core/kernels.h"
#include "core/rng.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_kernels.h"
#include "ops/bench.h"

namespace nemocube {
namespace {

Tensor normal(const Shape& shape, DType dtype, const char* name) {
  Tensor t = Tensor::empty(shape, dtype);
  fill_normal(t, RandomStream(1, name), 0, 1);
  return t;
}

bool alike(const Tensor& a, const Tensor& b) {
  const double tolerance = a.dtype() == DType::bf16 ? 2e-2 : a.dtype() == DType::f32 ? 1e-4 : 1e-10;
  const auto x = a.to_vector(), y = b.to_vector();
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!(std::abs(x[i] - y[i]) <= tolerance * (1 + std::abs(y[i])))) return false;
  return true;
}

struct Work {
  cpu::AttentionInputs in;
  cpu::AttentionResult out;
  cpu::AttentionGrads grads;
  Tensor d_o;
};

/// Pairs of a query and a key that it sees, times query heads and head_dim.
double products(const cpu::AttentionInputs& in) {
  double pairs = 0;
  for (std::int64_t s = 0; s < in.q_seqs.count(); ++s) {
    const auto q = static_cast<double>(in.q_seqs.length(s)), k = static_cast<double>(in.kv_seqs.length(s));
    pairs += in.options.causal ? q * (k - q) + q * (q + 1) / 2 : q * k;
  }
  return pairs * static_cast<double>(in.options.heads * in.options.head_dim);
}

std::shared_ptr<Work> prepare(const AttentionOptions& options, const Sequences& q_seqs,
                              const Sequences& kv_seqs, DType dtype) {
  const Shape q_shape{q_seqs.tokens(), options.heads * options.head_dim};
  const Shape k_shape{kv_seqs.tokens(), options.kv_heads * options.head_dim};
  auto w = std::make_shared<Work>();
  w->in = {normal(q_shape, dtype, "q"),
           normal(k_shape, dtype, "k"),
           normal(k_shape, dtype, "v"),
           options,
           q_seqs,
           kv_seqs};
  w->out = {Tensor::empty(q_shape, dtype),
            Tensor::empty({q_shape[0], options.heads}, accumulate_dtype(dtype))};
  w->d_o = normal(q_shape, dtype, "do");
  w->grads = {Tensor::empty(q_shape, dtype), Tensor::empty(k_shape, dtype), Tensor::empty(k_shape, dtype)};
  cpu::attention_forward(w->out, w->in);
  return w;
}

struct Variant {
  const char* name;
  decltype(&cpu::attention_forward) forward;
  decltype(&cpu::attention_backward) backward;
};
constexpr Variant tiled{"tiled", &cpu::attention_forward, &cpu::attention_backward};
constexpr Variant plain{"plain", &cpu::attention_plain_forward, &cpu::attention_plain_backward};

bool verify_forward(const Work& w, const Variant& other) {
  const cpu::AttentionResult want{Tensor::empty(w.out.o.shape(), w.out.o.dtype()),
                                  Tensor::empty(w.out.lse.shape(), w.out.lse.dtype())};
  other.forward(want, w.in);
  return alike(w.out.o, want.o) && alike(w.out.lse, want.lse);
}

bool verify_backward(const Work& w, const Variant& other) {
  const cpu::AttentionGrads want{w.grads.dq.clone(), w.grads.dk.clone(), w.grads.dv.clone()};
  other.backward(want, w.d_o, w.out, w.in);
  return alike(w.grads.dq, want.dq) && alike(w.grads.dk, want.dk) && alike(w.grads.dv, want.dv);
}

void add_cases(std::vector<BenchCase>& list, const AttentionOptions& options, const Sequences& q_seqs,
               const Sequences& kv_seqs, DType dtype, bool train, Variant variant = tiled) {
  const auto w = prepare(options, q_seqs, kv_seqs, dtype);
  const double q_bytes = static_cast<double>(w->in.q.bytes()), k_bytes = static_cast<double>(w->in.k.bytes());
  const double lse_bytes = static_cast<double>(w->out.lse.bytes()), flops = 2 * products(w->in);
  const std::string shape =
      cat("sequences=", q_seqs.count(), " q=", q_seqs.longest(), " kv=", kv_seqs.longest(),
          " heads=", options.heads, "/", options.kv_heads, " head_dim=", options.head_dim, " dtype=", dtype);
  const Variant other = variant.forward == plain.forward ? tiled : plain;
  list.push_back({cat(variant.name, " forward"), shape, 2 * q_bytes + 2 * k_bytes + lse_bytes, 2 * flops,
                  [=] { variant.forward(w->out, w->in); }, [=] { return verify_forward(*w, other); }});
  if (!train) return;
  list.push_back({cat(variant.name, " backward"), shape, 4 * q_bytes + 4 * k_bytes + lse_bytes, 5 * flops,
                  [=] { variant.backward(w->grads, w->d_o, w->out, w->in); },
                  [=] { return verify_backward(*w, other); }});
}

const RegisterBench bench("attention", [](const BenchOptions& o) {
  std::vector<BenchCase> list;
  const std::int64_t length = o.small ? 65 : 512;
  const AttentionOptions options{8, 2, 64, 0.125, true};
  const Sequences four = Sequences::uniform(4, length), one = Sequences::uniform(1, 4 * length);
  add_cases(list, options, four, four, o.dtype, true);
  add_cases(list, options, four, four, o.dtype, true, plain);
  add_cases(list, options, one, one, o.dtype, true);
  add_cases(list, options, Sequences::uniform(4, 1), four, o.dtype, false);
  return list;
});

}  // namespace
}  // namespace nemocube
