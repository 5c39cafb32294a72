#include <algorithm>
#include <memory>
#include <string_view>

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

/// Multiply-adds of one product between queries and keys: one for each pair of a query and a key that it
/// sees, in every query head, times head_dim.
double multiply_adds(const AttentionInputs& in) {
  double pairs = 0;
  for (const AttentionPair& pair : in.pairs.list()) {
    const auto q = static_cast<double>(pair.queries.size()), k = static_cast<double>(pair.keys.size());
    // The first `rising` queries see one key more each, up to those of the window; k >= q.
    const double most = in.options.window > 0 ? std::min(k, static_cast<double>(in.options.window)) : k,
                 rising = std::clamp(most - (k - q), 0.0, q);
    pairs += in.options.causal ? rising * (k - q) + rising * (rising + 1) / 2 + (q - rising) * most : q * k;
  }
  return pairs * static_cast<double>(in.options.heads * in.options.head_dim);
}

/// Bytes of the rows of k and v that some query sees.
double bytes_of_keys(const AttentionInputs& in) {
  double rows = 0;
  for (const AttentionPair& pair : in.pairs.list()) {
    const std::int64_t before = in.options.window > 0 ? pair.distance - in.options.window + 1 : 0;
    rows += static_cast<double>(pair.keys.size() - std::clamp<std::int64_t>(before, 0, pair.keys.size()));
  }
  return 2 * rows * static_cast<double>(in.k.cols() * size_of(in.k.dtype()));
}

std::shared_ptr<Work> prepare(const AttentionOptions& options, const Sequences& q_seqs,
                              const Sequences& kv_seqs, const BenchOptions& o) {
  const DType dtype = o.dtype;
  const Shape q_shape{q_seqs.tokens(), options.heads * options.head_dim};
  const Shape k_shape{kv_seqs.tokens(), options.kv_heads * options.head_dim};
  auto w = std::make_shared<Work>();
  w->in = {normal(o, q_shape, "q"), normal(o, k_shape, "k"), normal(o, k_shape, "v"), options, false, {}};
  std::vector<AttentionPair> pairs;
  for (std::int64_t i = 0; i < q_seqs.count(); ++i)
    pairs.push_back({{q_seqs.begin(i), q_seqs.end(i)}, {kv_seqs.begin(i), kv_seqs.end(i)}});
  w->in.pairs = {std::move(pairs), o.device};
  w->out = {Tensor::empty(q_shape, dtype, o.device),
            Tensor::empty({q_shape[0], options.heads}, accumulate_dtype(dtype), o.device)};
  w->d_o = normal(o, q_shape, "do");
  w->grads = {Tensor::empty(q_shape, dtype, o.device), Tensor::empty(k_shape, dtype, o.device),
              Tensor::empty(k_shape, dtype, o.device)};
  attention_tiled_forward(w->out, w->in, Into::set);
  return w;
}

/// Kernels of a variant, on the device of the operands.
struct Variant {
  const char* name;
  void (*forward)(const AttentionResult&, const AttentionInputs&, Into);
  void (*backward)(const AttentionGrads&, const Tensor&, const AttentionResult&, const AttentionInputs&,
                   Into);
};
constexpr Variant tiled{
    "tiled", [](const auto& out, const auto& in, Into how) { attention_tiled_forward(out, in, how); },
    [](const auto& out, const Tensor& d_o, const auto& result, const auto& in, Into how) {
      attention_tiled_backward(out, d_o, result, in, how);
    }};
constexpr Variant plain{
    "plain", [](const auto& out, const auto& in, Into how) { attention_plain_forward(out, in, how); },
    [](const auto& out, const Tensor& d_o, const auto& result, const auto& in, Into how) {
      attention_plain_backward(out, d_o, result, in, how);
    }};

/// Inputs, results and gradients on the CPU, where every variant has kernels.
AttentionInputs on_cpu(AttentionInputs in) {
  for (Tensor* t : {&in.q, &in.k, &in.v}) *t = t->to(Device::cpu);
  if (in.options.slopes) in.options.slopes = in.options.slopes.to(Device::cpu);
  in.pairs = {in.pairs.list(), Device::cpu};
  return in;
}
Tensor like(const Tensor& t) { return Tensor::empty(t.shape(), t.dtype(), Device::cpu); }

bool verify_forward(const Work& w, const Variant& other) {
  const AttentionResult want{like(w.out.o), like(w.out.lse)};
  other.forward(want, on_cpu(w.in), Into::set);
  return alike(w.out.o, want.o) && alike(w.out.lse, want.lse);
}

bool verify_backward(const Work& w, const Variant& other) {
  const AttentionGrads want{like(w.grads.dq), like(w.grads.dk), like(w.grads.dv)};
  other.backward(want, w.d_o.to(Device::cpu), {w.out.o.to(Device::cpu), w.out.lse.to(Device::cpu)},
                 on_cpu(w.in), Into::set);
  return alike(w.grads.dq, want.dq) && alike(w.grads.dk, want.dk) && alike(w.grads.dv, want.dv);
}

void add_cases(std::vector<BenchCase>& list, const AttentionOptions& options, const Sequences& q_seqs,
               const Sequences& kv_seqs, const BenchOptions& o, bool train, Variant variant = tiled) {
  const auto w = prepare(options, q_seqs, kv_seqs, o);
  const double product = 2 * multiply_adds(w->in);
  BenchShape shape{{"sequences", q_seqs.count()},  {"queries", q_seqs.longest()},
                   {"keys", kv_seqs.longest()},    {"heads", options.heads},
                   {"kv_heads", options.kv_heads}, {"head_dim", options.head_dim}};
  if (options.window > 0) shape.push_back({"window", options.window});
  const Variant other = std::string_view(variant.name) == plain.name ? tiled : plain;
  const char* const extras = options.softcap > 0 ? ", softcap and slopes" : "";
  // q, k, v in, o and lse out; scores and o are a product each.
  const double forward_bytes = bytes_of(w->in.q, w->out.o, w->out.lse) + bytes_of_keys(w->in);
  list.push_back({cat(variant.name, " forward", extras), shape, forward_bytes, 2 * product,
                  [=] { variant.forward(w->out, w->in, Into::set); },
                  [=] { return verify_forward(*w, other); }});
  if (!train) return;
  // All of that and do in, dq, dk, dv out; scores again, dp, dq, dk, dv.
  const double backward_bytes = forward_bytes + bytes_of(w->d_o, w->grads.dq, w->grads.dk, w->grads.dv);
  list.push_back({cat(variant.name, " backward", extras), shape, backward_bytes, 5 * product,
                  [=] { variant.backward(w->grads, w->d_o, w->out, w->in, Into::set); },
                  [=] { return verify_backward(*w, other); }});
}

const RegisterBench registration("attention", [](const BenchOptions& o) {
  std::vector<BenchCase> list;
  if (o.nano) {
    const AttentionOptions nano{32, 2, 128, 0.088388347648318447, true};
    const Sequences sequence = Sequences::uniform(1, o.emulated ? 512 : 8192);
    add_cases(list, nano, sequence, sequence, o, true);
    return list;
  }
  const std::int64_t length = o.small ? 65 : o.emulated ? 128 : 512;
  const AttentionOptions options{8, 2, 64, 0.125, true};
  const Sequences four = Sequences::uniform(4, length), one = Sequences::uniform(1, 4 * length);
  add_cases(list, options, four, four, o, true);
  if (!o.device.is_cuda()) add_cases(list, options, four, four, o, true, plain);
  add_cases(list, options, one, one, o, true);
  add_cases(list, options, Sequences::uniform(4, 1), four, o, false);
  AttentionOptions window = options;
  window.window = length / 4;
  add_cases(list, window, one, one, o, true);
  add_cases(list, window, Sequences::uniform(4, 1), four, o, false);
  AttentionOptions changed = options;
  changed.softcap = 20;
  changed.slopes = normal({options.heads}, DType::f32, "slopes", 0.1, 0.01).to(o.device);
  add_cases(list, changed, one, one, o, true);
  return list;
});

}  // namespace
}  // namespace nemocube::attention_bench
