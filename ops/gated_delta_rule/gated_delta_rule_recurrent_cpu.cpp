#include "ops/gated_delta_rule/gated_delta_rule_chunks_cpu.h"

/// The recurrence of the header, token by token. It is slow, and simple enough to check the chunked variant.
namespace nemocube::cpu {
namespace {

using namespace delta_rule;

/// to = S^T x, S [key_dim, value_dim]
template <class A>
void read_state(A* to, const A* S, const A* x, const Sizes& z) {
  std::fill_n(to, z.value_dim, A(0));
  for (std::int64_t i = 0; i < z.key_dim; ++i) add_scaled(to, x[i], S + i * z.value_dim, z.value_dim);
}

/// Rows of one chunk, in the accumulation dtype.
template <class T>
struct Rows {
  using A = acc_t<T>;
  ChunkTokens<T> tokens;
  UnitRows<T> Q, K;
  Matrix<A> V, O;  // of one value head [n, value_dim]; O: outputs or their gradients
  Matrix<A> e;     // [1, value_dim]
  Workspace<A> memory;

  Rows(const DeltaRuleProblem& p, const Sizes& z)
      : tokens(p, z),
        memory({{Q.rows, z.chunk, z.key_dim},
                {K.rows, z.chunk, z.key_dim},
                {Q.inverses, 1, z.chunk},
                {K.inverses, 1, z.chunk},
                {V, z.chunk, z.value_dim},
                {O, z.chunk, z.value_dim},
                {e, 1, z.value_dim}}) {
    Q.scale = A(1) / std::sqrt(static_cast<A>(z.key_dim));
  }

  void load_inputs(const DeltaRuleProblem& p, const ChunkPart& at) {
    for (Matrix<A>* m : {&Q.rows, &K.rows, &V, &O}) m->rows = at.n;
    tokens.compute(at);
    Q.set(p.q, at);
    K.set(p.k, at);
  }

  /// S becomes e^g S + k e^T of token l; `decayed` receives e^g S, and `e` is set.
  void advance(A* S, A* decayed, const HeadTokens<A>& t, std::int64_t l, const Sizes& z) const {
    const A decay = vec_exp(t.dt[l] * t.rate);
    const A* k = K.rows.row(l);
    for (std::int64_t i = 0; i < z.state(); ++i) decayed[i] = decay * S[i];
    read_state(e.data, decayed, k, z);
    for (std::int64_t c = 0; c < z.value_dim; ++c) e.data[c] = t.beta[l] * (V.row(l)[c] - e.data[c]);
    for (std::int64_t i = 0; i < z.key_dim; ++i)
      for (std::int64_t c = 0; c < z.value_dim; ++c)
        S[i * z.value_dim + c] = decayed[i * z.value_dim + c] + k[i] * e.data[c];
  }
};

template <class T>
class RecurrentForward {
 public:
  using A = acc_t<T>;

  RecurrentForward(const DeltaRuleProblem& p, const Tensor& o, const DeltaRuleStates& states)
      : p_(p),
        o_(o),
        states_(states),
        z_(p),
        rows_(p, z_),
        memory_({{state_, z_.own_heads * z_.key_dim, z_.value_dim}, {decayed_, z_.key_dim, z_.value_dim}}) {}

  void operator()(std::int64_t sequence, std::int64_t key_head) {
    const std::int64_t begin = p_.sequences.begin(sequence), end = p_.sequences.end(sequence);
    const auto copy_states = [&](const Matrix<A>& from, const Matrix<A>& to) {
      std::copy_n(from.data, z_.own_heads * z_.state(), to.data);
    };
    state_.zero();
    if (p_.initial_state.defined())
      copy_states(states_of<A>(p_.initial_state, sequence, key_head, z_), state_);
    for (std::int64_t i = 0; i < p_.chunks.count_of(sequence); ++i) {
      const std::int64_t t0 = begin + i * z_.chunk;
      const ChunkPart at{key_head, p_.chunks.first_of(sequence) + i, t0, std::min(z_.chunk, end - t0)};
      if (states_.chunk_starts.defined())
        copy_states(state_, states_of<A>(states_.chunk_starts, at.index, key_head, z_));
      rows_.load_inputs(p_, at);
      for (std::int64_t h = 0; h < z_.own_heads; ++h) {
        const std::int64_t column = (key_head * z_.own_heads + h) * z_.value_dim;
        A* const S = state_of(state_, h, z_).data;
        load<T>(rows_.V, p_.v, t0, column);
        for (std::int64_t l = 0; l < at.n; ++l) {
          rows_.advance(S, decayed_.data, rows_.tokens.head(h), l, z_);
          read_state(rows_.O.row(l), S, rows_.Q.rows.row(l), z_);
        }
        store<T>(rows_.O, o_, t0, column);
      }
    }
    if (states_.final.defined()) copy_states(state_, states_of<A>(states_.final, sequence, key_head, z_));
  }

 private:
  const DeltaRuleProblem& p_;
  const Tensor& o_;
  const DeltaRuleStates& states_;
  Sizes z_;
  Rows<T> rows_;
  Matrix<A> state_, decayed_;
  Workspace<A> memory_;
};

/// One sequence and key head, last chunk first. The states of a chunk are formed again from its start. The
/// tokens are then visited backwards with dS, the gradient of the state from all later tokens.
template <class T>
class RecurrentBackward {
 public:
  using A = acc_t<T>;

  RecurrentBackward(const DeltaRuleProblem& p, const DeltaRuleGradients& g, const Tensor& d_o,
                    const Tensor& starts)
      : p_(p),
        g_(g),
        d_o_(d_o),
        starts_(starts),
        z_(p),
        rows_(p, z_),
        memory_({{dQ_, z_.chunk, z_.key_dim},
                 {dK_, z_.chunk, z_.key_dim},
                 {dV_, z_.chunk, z_.value_dim},
                 {decayed_, z_.chunk, z_.state()},
                 {errors_, z_.chunk, z_.value_dim},
                 {state_, z_.key_dim, z_.value_dim},
                 {dS_, z_.own_heads, z_.state()},
                 {dg_, 1, z_.chunk},
                 {dbeta_, 1, z_.chunk}}) {}

  void operator()(std::int64_t sequence, std::int64_t key_head) {
    const std::int64_t begin = p_.sequences.begin(sequence), end = p_.sequences.end(sequence);
    dS_.zero();
    for (std::int64_t i = p_.chunks.count_of(sequence) - 1; i >= 0; --i) {
      const std::int64_t t0 = begin + i * z_.chunk;
      const ChunkPart at{key_head, p_.chunks.first_of(sequence) + i, t0, std::min(z_.chunk, end - t0)};
      dQ_.rows = dK_.rows = dV_.rows = at.n;
      rows_.load_inputs(p_, at);
      dQ_.zero();
      dK_.zero();
      for (std::int64_t h = 0; h < z_.own_heads; ++h) head(at, h);
      rows_.Q.write_gradient(dQ_, g_.q, at);
      rows_.K.write_gradient(dK_, g_.k, at);
    }
  }

 private:
  void head(const ChunkPart& at, std::int64_t h) {
    const HeadTokens<A> t = rows_.tokens.head(h);
    const std::int64_t column = (at.key_head * z_.own_heads + h) * z_.value_dim;
    load<T>(rows_.V, p_.v, at.t0, column);
    load<T>(rows_.O, d_o_, at.t0, column);
    const Matrix<A> start = state_of(states_of<A>(starts_, at.index, at.key_head, z_), h, z_);
    std::copy_n(start.data, z_.state(), state_.data);
    for (std::int64_t l = 0; l < at.n; ++l) {
      rows_.advance(state_.data, decayed_.row(l), t, l, z_);
      std::copy_n(rows_.e.data, z_.value_dim, errors_.row(l));
    }
    for (std::int64_t l = at.n - 1; l >= 0; --l) token(t, l, dS_.row(h));
    store<T>(dV_, g_.v, at.t0, column);
    rows_.tokens.write_gradients(g_, at, h, dg_.data, dbeta_.data);
  }

  void token(const HeadTokens<A>& t, std::int64_t l, A* dS) {
    const A *q = rows_.Q.rows.row(l), *k = rows_.K.rows.row(l), *d_o = rows_.O.row(l), *e = errors_.row(l);
    const A* S = decayed_.row(l);  // before the token's update
    A *dq = dQ_.row(l), *dk = dK_.row(l), *dv = dV_.row(l);
    const std::int64_t n = z_.value_dim;
    // o = S'^T q with S' = S + k e^T
    const A d_o_e = dot(d_o, e, n);
    for (std::int64_t i = 0; i < z_.key_dim; ++i) {
      dq[i] += dot(S + i * n, d_o, n) + k[i] * d_o_e;
      add_scaled(dS + i * n, q[i], d_o, n);
    }
    // S' = S + k e^T with e = beta (v - S^T k)
    read_state(dv, dS, k, z_);  // the gradient of e
    read_state(rows_.e.data, S, k, z_);
    A dbeta = 0;
    for (std::int64_t c = 0; c < n; ++c) {
      dbeta += dv[c] * (rows_.V.row(l)[c] - rows_.e.data[c]);
      dv[c] *= t.beta[l];
    }
    for (std::int64_t i = 0; i < z_.key_dim; ++i) {
      dk[i] += dot(dS + i * n, e, n) - dot(S + i * n, dv, n);
      add_scaled(dS + i * n, -k[i], dv, n);
    }
    // S = e^g times the state before
    dg_.data[l] = dot(dS, S, z_.state());
    dbeta_.data[l] = dbeta;
    const A decay = vec_exp(t.dt[l] * t.rate);
    for (std::int64_t i = 0; i < z_.state(); ++i) dS[i] *= decay;
  }

  const DeltaRuleProblem& p_;
  const DeltaRuleGradients& g_;
  const Tensor &d_o_, &starts_;
  Sizes z_;
  Rows<T> rows_;
  Matrix<A> dQ_, dK_;      // [n, key_dim]
  Matrix<A> dV_, errors_;  // [n, value_dim]; errors: e of each token
  Matrix<A> decayed_;      // [n, key_dim * value_dim]: e^g times the state before each token
  Matrix<A> state_;        // [key_dim, value_dim]
  Matrix<A> dS_;           // [own_heads, key_dim * value_dim]
  Matrix<A> dg_, dbeta_;   // [1, n], of one head
  Workspace<A> memory_;
};

}  // namespace

void delta_rule_recurrent_forward(const DeltaRuleProblem& problem, const Tensor& o,
                                  const DeltaRuleStates& states) {
  delta_rule::run_kernels(problem,
                          [&]<class T>(TypeTag<T>) { return RecurrentForward<T>(problem, o, states); });
}

void delta_rule_recurrent_backward(const DeltaRuleProblem& problem, const DeltaRuleGradients& gradients,
                                   const Tensor& d_o, const Tensor& chunk_starts) {
  delta_rule::run_kernels(problem, [&]<class T>(TypeTag<T>) {
    return RecurrentBackward<T>(problem, gradients, d_o, chunk_starts);
  });
}

}  // namespace nemocube::cpu
