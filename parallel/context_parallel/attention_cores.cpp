#include "parallel/context_parallel/attention_cores.h"

#include <utility>

#include "core/add.h"
#include "parallel/context_parallel/attention_pairs.h"

namespace nemocube {
namespace {

/// Uninitialised, in the shape of x except for the rows.
Tensor rows_like(const Tensor& x, std::int64_t rows, DType dtype) {
  return Tensor::empty({rows, x.cols()}, dtype, x.device());
}

Tensor zeros_like(const Tensor& x, DType dtype) { return Tensor::zeros(x.shape(), dtype, x.device()); }

/// How the ranks compute partial attention together. Gradients have the accumulation dtype; dk and dv are
/// defined if they are wanted.
class AttentionGroup {
 public:
  explicit AttentionGroup(Communicator& cp) : cp_(cp) {}
  virtual ~AttentionGroup() = default;
  virtual void forward(const AttentionResult& out, AttentionInputs in, const SequenceCut& cut) const = 0;
  virtual AttentionGrads backward(const Tensor& d_o, const AttentionResult& out, AttentionInputs in,
                                  const SequenceCut& cut, bool wants_keys) const = 0;
  Communicator& cp() const { return cp_; }

 protected:
  Communicator& cp_;
};

/// Calls compute() with the pairs of each step in `in`.
template <class Compute>
void for_each(const std::vector<AttentionStep>& steps, AttentionInputs& in, Compute&& compute) {
  for (const AttentionStep& step : steps) {
    in.pairs = step.pairs;
    in.options.causal = step.causal;
    compute();
  }
}

class Ring final : public AttentionGroup {
 public:
  using AttentionGroup::AttentionGroup;

  void forward(const AttentionResult& out, AttentionInputs in, const SequenceCut& cut) const override {
    Into how = Into::set;
    walk(in, cut, [&](std::int64_t, const std::vector<AttentionStep>& steps) {
      for_each(steps, in, [&] { partial_attention(out, in, std::exchange(how, Into::add)); });
    });
  }

  AttentionGrads backward(const Tensor& d_o, const AttentionResult& out, AttentionInputs in,
                          const SequenceCut& cut, bool wants_keys) const override {
    const DType dtype = out.lse.dtype();
    const auto& rows = cut.rows_of_ranks();
    const auto key_sums = [&] { return wants_keys ? zeros_like(in.k, dtype) : Tensor(); };
    const AttentionGrads own{zeros_like(in.q, dtype), key_sums(), key_sums()};
    AttentionGrads arriving;  // what the ranks before have added to dk and dv of the block that comes next
    Work sums;
    const auto add_arrived = [&](const AttentionGrads& to) {
      sums.wait();
      add_elements(to.dk, to.dk, arriving.dk);
      add_elements(to.dv, to.dv, arriving.dv);
    };
    walk(in, cut, [&](std::int64_t step, const std::vector<AttentionStep>& steps) {
      const AttentionGrads part = step == 0 ? own : AttentionGrads{own.dq, key_sums(), key_sums()};
      for_each(steps, in, [&] { partial_attention_backward(part, d_o, out, in, Into::add); });
      if (!wants_keys || step == 0) return;
      if (step > 1) add_arrived(part);
      const std::int64_t next = rows[static_cast<std::size_t>(owner(step + 1))];
      arriving = {{}, rows_like(in.k, next, dtype), rows_like(in.v, next, dtype)};
      sums = pass_on(part.dk, part.dv, arriving.dk, arriving.dv);
    });
    if (wants_keys) add_arrived(own);
    return own;
  }

 private:
  /// Whose keys are here in a step.
  std::int64_t owner(std::int64_t step) const { return (cp_.rank() - step + cp_.size()) % cp_.size(); }

  /// Two tensors to the next rank, two from the rank before.
  Work pass_on(const Tensor& a, const Tensor& b, const Tensor& next_a, const Tensor& next_b) const {
    const int c = cp_.size(), next = (cp_.rank() + 1) % c, before = (cp_.rank() + c - 1) % c;
    return cp_.start_exchange({{a, next}, {b, next}}, {{next_a, before}, {next_b, before}});
  }

  /// Calls compute(step, calls) with the keys and values of each step in `in`, while the next ones arrive.
  template <class Compute>
  void walk(AttentionInputs& in, const SequenceCut& cut, Compute&& compute) const {
    const auto& rows = cut.rows_of_ranks();
    const AttentionOptions options = in.options;
    in.k = in.k.as_contiguous();
    in.v = in.v.as_contiguous();
    for (std::int64_t step = 0; step < cp_.size(); ++step) {
      Tensor k, v;
      Work arriving;
      if (step + 1 < cp_.size()) {
        const std::int64_t next = rows[static_cast<std::size_t>(owner(step + 1))];
        k = rows_like(in.k, next, in.k.dtype());
        v = rows_like(in.v, next, in.v.dtype());
        arriving = pass_on(in.k, in.v, k, v);
      }
      compute(step, ring_steps(cut, owner(step), options, in.q.device()));
      arriving.wait();
      in.k = k;
      in.v = v;
    }
  }
};

class AllGather final : public AttentionGroup {
 public:
  using AttentionGroup::AttentionGroup;

  void forward(const AttentionResult& out, AttentionInputs in, const SequenceCut& cut) const override {
    gather_keys(in, cut);
    for_steps(in, cut, [&] { partial_attention(out, in, Into::set); });
  }

  AttentionGrads backward(const Tensor& d_o, const AttentionResult& out, AttentionInputs in,
                          const SequenceCut& cut, bool wants_keys) const override {
    const DType dtype = out.lse.dtype();
    gather_keys(in, cut);
    const auto key_sums = [&] { return wants_keys ? zeros_like(in.k, dtype) : Tensor(); };
    AttentionGrads grads{zeros_like(in.q, dtype), key_sums(), key_sums()};
    for_steps(in, cut, [&] { partial_attention_backward(grads, d_o, out, in, Into::add); });
    if (wants_keys) scatter_sums(grads, cut);
    return grads;
  }

 private:
  template <class Compute>
  static void for_steps(AttentionInputs& in, const SequenceCut& cut, Compute&& compute) {
    for_each(steps_over_all_keys(cut, in.options, in.q.device()), in, compute);
  }

  /// Elements that each rank has of rows of `columns`.
  static std::vector<std::int64_t> counts(const SequenceCut& cut, std::int64_t columns) {
    std::vector<std::int64_t> result = cut.rows_of_ranks();
    for (std::int64_t& n : result) n *= columns;
    return result;
  }

  static Tensor permuted(const Tensor& x, const Permutation& order) {
    Context silent;
    return permute(silent, x, order).value();
  }

  void gather_keys(AttentionInputs& in, const SequenceCut& cut) const {
    const auto elements = counts(cut, in.k.cols());
    const std::int64_t tokens = cut.whole().tokens();
    const Tensor k = rows_like(in.k, tokens, in.k.dtype()), v = rows_like(in.v, tokens, in.v.dtype());
    Work keys = cp_.start_all_gather_v(k, in.k.as_contiguous(), elements);
    Work values = cp_.start_all_gather_v(v, in.v.as_contiguous(), elements);
    const Permutation& natural = cut.to_natural_order(k.device());
    keys.wait();
    in.k = permuted(k, natural);
    values.wait();
    in.v = permuted(v, natural);
  }

  void scatter_sums(AttentionGrads& grads, const SequenceCut& cut) const {
    const auto elements = counts(cut, grads.dk.cols());
    const Permutation& rank_major = cut.to_rank_major_order(grads.dk.device());
    const auto start = [&](Tensor& sum) {
      const Tensor all = permuted(sum, rank_major);
      sum = rows_like(all, cut.local().tokens(), all.dtype());
      return cp_.start_reduce_scatter_v(sum, all, elements);
    };
    Work keys = start(grads.dk), values = start(grads.dv);
    keys.wait();
    values.wait();
  }
};

AttentionCore core_of(std::shared_ptr<const AttentionGroup> group) {
  return [group](Context& ctx, const Var& q, const Var& k, const Var& v, const AttentionOptions& options,
                 const Sequences& whole) -> Var {
    Communicator& cp = group->cp();
    if (cp.size() == 1) return attention(ctx, q, k, v, options, whole, whole);
    const SequenceCut cut(whole, cp.size(), cp.rank());
    AttentionInputs in = attention_inputs(ctx, q.value(), k.value(), v.value(), options);
    cut.local().check("attention: q", in.q.dim(0));
    cut.local().check("attention: k", in.k.dim(0));
    const DType dtype = in.q.dtype(), sums = accumulate_dtype(dtype);
    AttentionResult out{Tensor::empty(in.q.shape(), sums, in.q.device()),
                        Tensor::empty({in.q.dim(0), options.heads}, sums, in.q.device())};
    group->forward(out, in, cut);
    out.o = out.o.to(dtype);
    Var result = make_result(out.o, ctx.records({&q, &k, &v}));
    if (result.needs_grad())
      ctx.tape->record("attention", [group, cut, in = std::move(in), out, nq = q.node(), nk = k.node(),
                                     nv = v.node(), node = result.node()] {
        if (!node->filled()) return;
        const AttentionGrads grads = group->backward(node->take(), out, in, cut, nk || nv);
        if (nq) nq->add(grads.dq.to(in.q.dtype()));
        if (nk) nk->add(grads.dk.to(in.q.dtype()));
        if (nv) nv->add(grads.dv.to(in.q.dtype()));
      });
    return result;
  };
}

}  // namespace

AttentionCore ring_attention(Communicator& cp) { return core_of(std::make_shared<Ring>(cp)); }
AttentionCore all_gather_attention(Communicator& cp) { return core_of(std::make_shared<AllGather>(cp)); }

}  // namespace nemocube
