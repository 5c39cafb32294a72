#include <memory>

#include "ops/attention/attention.h"
#include "ops/attention/attention_kernels.h"
#include "ops/bench_support.h"

namespace nemocube::attention_bench {
namespace {

using bench::bytes_of;
using bench::normal;

bool alike(const Tensor& a, const Tensor& b) {
  return bench::close(a, b, a.dtype() == DType::bf16 ? 2e-2 : a.dtype() == DType::f32 ? 1e-4 : 1e-10);
}

struct Work {
  AttentionInputs in;
  AttentionResult out;
  AttentionGrads grads;
  Tensor d_o;
};

/// Multiply-adds of one product between queries and keys: one for each pair of a query and a key that it sees, in
/// every query head, times head_dim.
double multiply_adds(const AttentionInputs& in) {
  double pairs = 0;
  for (const AttentionPair& pair : in.pairs.list()) {
    const auto q = static_cast<double>(pair.queries.size()), k = static_cast<double>(pair.keys.size());
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
           false,
           {}};
  std::vector<AttentionPair> pairs;
  for (std::int64_t i = 0; i < q_seqs.count(); ++i)
    pairs.push_back({{q_seqs.begin(i), q_seqs.end(i)}, {kv_seqs.begin(i), kv_seqs.end(i)}});
  w->in.pairs = {std::move(pairs), Device::cpu};
  w->out = {Tensor::empty(q_shape, dtype, Device::cpu),
            Tensor::empty({q_shape[0], options.heads}, accumulate_dtype(dtype), Device::cpu)};
  w->d_o = normal(q_shape, dtype, "do");
  w->grads = {Tensor::empty(q_shape, dtype, Device::cpu), Tensor::empty(k_shape, dtype, Device::cpu),
              Tensor::empty(k_shape, dtype, Device::cpu)};
  cpu::attention_forward(w->out, w->in, Into::set);
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
  const AttentionResult want{Tensor::empty(w.out.o.shape(), w.out.o.dtype(), Device::cpu),
                             Tensor::empty(w.out.lse.shape(), w.out.lse.dtype(), Device::cpu)};
  other.forward(want, w.in, Into::set);
  return alike(w.out.o, want.o) && alike(w.out.lse, want.lse);
}

bool verify_backward(const Work& w, const Variant& other) {
  const AttentionGrads want{w.grads.dq.clone(), w.grads.dk.clone(), w.grads.dv.clone()};
  other.backward(want, w.d_o, w.out, w.in, Into::set);
  return alike(w.grads.dq, want.dq) && alike(w.grads.dk, want.dk) && alike(w.grads.dv, want.dv);
}

void add_cases(std::vector<BenchCase>& list, const AttentionOptions& options, const Sequences& q_seqs,
               const Sequences& kv_seqs, DType dtype, bool train, Variant variant = tiled) {
  const auto w = prepare(options, q_seqs, kv_seqs, dtype);
  const double product = 2 * multiply_adds(w->in);
  const BenchShape shape{{"sequences", q_seqs.count()},  {"queries", q_seqs.longest()},
                         {"keys", kv_seqs.longest()},    {"heads", options.heads},
                         {"kv_heads", options.kv_heads}, {"head_dim", options.head_dim}};
  const Variant other = variant.forward == plain.forward ? tiled : plain;
  // q, k, v in, o and lse out; scores and o are a product each.
  const double forward_bytes = bytes_of(w->in.q, w->in.k, w->in.v, w->out.o, w->out.lse);
  list.push_back({cat(variant.name, " forward"), shape, forward_bytes, 2 * product,
                  [=] { variant.forward(w->out, w->in, Into::set); },
                  [=] { return verify_forward(*w, other); }});
  if (!train) return;
  // All of that and do in, dq, dk, dv out; scores again, dp, dq, dk, dv.
  const double backward_bytes = forward_bytes + bytes_of(w->d_o, w->grads.dq, w->grads.dk, w->grads.dv);
  list.push_back({cat(variant.name, " backward"), shape, backward_bytes, 5 * product,
                  [=] { variant.backward(w->grads, w->d_o, w->out, w->in, Into::set); },
                  [=] { return verify_backward(*w, other); }});
}

const RegisterBench registration("attention", [](const BenchOptions& o) {
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
}  // namespace nemocube::attention_bench
