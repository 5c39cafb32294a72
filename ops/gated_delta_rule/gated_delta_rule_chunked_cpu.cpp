#include <algorithm>

#include "ops/gated_delta_rule/gated_delta_rule_chunks_cpu.h"

/// Forward of one chunk of n tokens, for the value heads of one key head. S is the state at the start of the
/// chunk, D[l, s] the decay from token s to token l, zero for s > l (docs/gated_delta_rule.md, "Chunks"):
///   A  = strictly lower part of beta (K K^T * D)
///   U  = (I + A)^-1 beta (V - from_start K S)       what the tokens add to the state
///   O  = from_start Q S + (Q K^T * D) U
///   S' = whole S + (to_end K)^T U
namespace nemocube::cpu {
namespace {

using namespace delta_rule;

template <class T>
class ChunkedForward {
 public:
  using A = acc_t<T>;

  ChunkedForward(const DeltaRuleProblem& p, const Tensor& o, const DeltaRuleStates& states)
      : p_(p),
        o_(o),
        states_(states),
        z_(p),
        c_(p, z_),
        memory_({{O_, z_.padded_chunk, z_.value_dim},
                 {decayed_K_, z_.padded_chunk, z_.key_dim},
                 {last_state_, z_.own_heads * z_.key_dim, z_.value_dim}}) {}

  void operator()(std::int64_t sequence, std::int64_t key_head) {
    const std::int64_t begin = p_.sequences.begin(sequence), end = p_.sequences.end(sequence);
    const std::int64_t first = p_.chunks.first_of(sequence), count = p_.chunks.count_of(sequence);
    // The place of the states before chunk i: the tensor that backward reads, if there is one. Without such a
    // tensor every state is in working memory; the state after the last chunk always is.
    const auto states_before = [&](std::int64_t i) {
      return states_.chunk_starts.defined() && i < count
                 ? states_of<A>(states_.chunk_starts, first + i, key_head, z_)
                 : last_state_;
    };
    const std::int64_t elements = z_.own_heads * z_.state();
    if (p_.initial_state.defined())
      std::copy_n(states_of<A>(p_.initial_state, sequence, key_head, z_).data, elements,
                  states_before(0).data);
    else
      states_before(0).zero();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t t0 = begin + i * z_.chunk;
      c_.set_chunk({key_head, first + i, t0, std::min(z_.chunk, end - t0)});
      O_.rows = decayed_K_.rows = c_.at.n;
      const bool has_state = i > 0 || p_.initial_state.defined();
      const bool pass_on = i + 1 < count || states_.final.defined();
      for (std::int64_t h = 0; h < z_.own_heads; ++h) {
        const Matrix<A> state = state_of(states_before(i), h, z_);
        c_.set_head(h, has_state ? &state : nullptr);
        outputs(h, has_state ? &state : nullptr);
        if (pass_on) pass_state(h, state, state_of(states_before(i + 1), h, z_));
      }
    }
    if (states_.final.defined())
      std::copy_n(states_before(count).data, elements,
                  states_of<A>(states_.final, sequence, key_head, z_).data);
  }

 private:
  /// O = from_start Q S + P U
  void outputs(std::int64_t h, const Matrix<A>* state) {
    if (state) {
      multiply(Into::set, O_, c_.Q.rows, *state);
      const HeadTokens<A> t = c_.tokens.head(h);
      for (std::int64_t l = 0; l < c_.at.n; ++l) set_scaled_in_place(O_.row(l), t.from_start[l]);
    }
    for_row_blocks(c_.at.n, [&](std::int64_t r0, std::int64_t r1) {
      multiply(state ? Into::add : Into::set, O_.row_range(r0, r1), c_.P.part(r0, r1, 0, r1),
               c_.U.row_range(0, r1));
    });
    store<T>(O_, o_, c_.at.t0, c_.channel(h));
  }
  void set_scaled_in_place(A* row, A factor) const {
    for (std::int64_t c = 0; c < z_.value_dim; ++c) row[c] *= factor;
  }

  /// S' = whole S + (to_end K)^T U. `from` and `to` may be the same.
  void pass_state(std::int64_t h, const Matrix<A>& from, const Matrix<A>& to) {
    const HeadTokens<A> t = c_.tokens.head(h);
    for (std::int64_t l = 0; l < c_.at.n; ++l)
      set_scaled(decayed_K_.row(l), t.to_end[l], c_.K.rows.row(l), z_.key_dim);
    for (std::int64_t i = 0; i < z_.state(); ++i) to.data[i] = t.whole * from.data[i];
    add_transposed_product(to, decayed_K_, c_.U);
  }

  const DeltaRuleProblem& p_;
  const Tensor& o_;
  const DeltaRuleStates& states_;
  Sizes z_;
  ChunkProducts<T> c_;
  Matrix<A> O_;           // [n, value_dim]
  Matrix<A> decayed_K_;   // to_end K [n, key_dim]
  Matrix<A> last_state_;  // of all heads of the key head
  Workspace<A> memory_;
};

}  // namespace

void delta_rule_chunked_forward(const DeltaRuleProblem& problem, const Tensor& o,
                                const DeltaRuleStates& states) {
  delta_rule::run_kernels(problem,
                          [&]<class T>(TypeTag<T>) { return ChunkedForward<T>(problem, o, states); });
}

}  // namespace nemocube::cpu
