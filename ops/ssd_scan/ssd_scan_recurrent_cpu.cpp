#include "ops/ssd_scan/ssd_scan_chunks_cpu.h"

/// The recurrence of the header, token by token. It is slow, and simple enough to check the chunked variant.
namespace nemocube::cpu {
namespace {

using namespace ssd;

/// S = e^(dt A) S + dt x B^T, S [head_dim, state].
template <class A>
void advance(A* __restrict s, A decay, A dt, const A* x, const A* __restrict b, const Sizes& z) {
  for (std::int64_t p = 0; p < z.head_dim; ++p, s += z.state) {
    const A xp = dt * x[p];
    for (std::int64_t n = 0; n < z.state; ++n) s[n] = decay * s[n] + xp * b[n];
  }
}

/// to += factor * from
template <class A>
void add_scaled(A* __restrict to, A factor, const A* __restrict from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

/// Rows of one chunk, in the accumulation dtype.
template <class T>
struct Rows {
  using A = acc_t<T>;
  Matrix<A> x, b, c;
  ChunkDecays<T> decays;
  Workspace<A> memory;

  Rows(const SsdProblem& p, const Sizes& z)
      : decays(p, z),
        memory({{x, z.chunk, z.group_channels}, {b, z.chunk, z.state}, {c, z.chunk, z.state}}) {}

  void load_inputs(const SsdProblem& p, const ChunkPart& at) {
    x.rows = b.rows = c.rows = at.n;
    load<T>(x, p.x, at.t0, at.group * x.cols);
    load<T>(b, p.B, at.t0, at.group * b.cols);
    load<T>(c, p.C, at.t0, at.group * c.cols);
    decays.compute(at);
  }
};

template <class A>
A decay_at(const HeadDecays<A>& d, std::int64_t l) {
  return vec_exp(d.dt[l] * d.rate);
}

template <class T>
class RecurrentForward {
 public:
  using A = acc_t<T>;

  RecurrentForward(const SsdProblem& p, const Tensor& y, const SsdStates& states)
      : p_(p),
        y_(y),
        states_(states),
        z_(p),
        rows_(p, z_),
        memory_({{Y_, z_.chunk, z_.group_channels}, {state_, z_.group_channels, z_.state}}) {}

  void operator()(std::int64_t sequence, std::int64_t group) {
    const std::int64_t begin = p_.sequences.begin(sequence), end = p_.sequences.end(sequence);
    const auto copy_state = [&](const Matrix<A>& from, const Matrix<A>& to) {
      std::copy_n(from.data, z_.group_channels * z_.state, to.data);
    };
    state_.zero();
    if (p_.initial_state.defined())
      copy_state(group_states<A>(p_.initial_state, sequence, group, z_), state_);
    for (std::int64_t i = 0; i < p_.chunks.count_of(sequence); ++i) {
      const std::int64_t t0 = begin + i * z_.chunk;
      const ChunkPart at{group, p_.chunks.first_of(sequence) + i, t0, std::min(z_.chunk, end - t0)};
      if (states_.chunk_starts.defined())
        copy_state(state_, group_states<A>(states_.chunk_starts, at.index, group, z_));
      rows_.load_inputs(p_, at);
      for (std::int64_t h = 0; h < z_.group_heads; ++h) head(at, h);
      Y_.rows = at.n;
      store<T>(Y_, y_, t0, group * z_.group_channels);
    }
    if (states_.final.defined()) copy_state(state_, group_states<A>(states_.final, sequence, group, z_));
  }

 private:
  void head(const ChunkPart& at, std::int64_t h) {
    const HeadDecays<A> d = rows_.decays.head(h);
    const std::int64_t c0 = h * z_.head_dim;
    const A skip = p_.D.template data<A>()[at.group * z_.group_heads + h];
    A* s = state_.row(c0);
    for (std::int64_t l = 0; l < at.n; ++l) {
      const A* x = rows_.x.row(l) + c0;
      A* y = Y_.row(l) + c0;
      advance(s, decay_at(d, l), d.dt[l], x, rows_.b.row(l), z_);
      for (std::int64_t q = 0; q < z_.head_dim; ++q)
        y[q] = dot(s + q * z_.state, rows_.c.row(l), z_.state) + skip * x[q];
    }
  }

  const SsdProblem& p_;
  const Tensor& y_;
  const SsdStates& states_;
  Sizes z_;
  Rows<T> rows_;
  Matrix<A> Y_;      // [n, group_channels]
  Matrix<A> state_;  // [group_channels, state]
  Workspace<A> memory_;
};

/// One sequence and group, last chunk first. The states of a chunk are formed again from its start. The
/// tokens are then visited backwards with dS, the gradient of the state from all later tokens.
template <class T>
class RecurrentBackward {
 public:
  using A = acc_t<T>;

  RecurrentBackward(const SsdProblem& p, const SsdGradients& g, const Tensor& dy, const Tensor& starts)
      : p_(p),
        g_(g),
        dy_(dy),
        starts_(starts),
        z_(p),
        rows_(p, z_),
        memory_({{dY_, z_.chunk, z_.group_channels},
                 {dX_, z_.chunk, z_.group_channels},
                 {dB_, z_.chunk, z_.state},
                 {dC_, z_.chunk, z_.state},
                 {states_, z_.chunk + 1, z_.head_dim * z_.state},
                 {dS_, z_.group_heads, z_.head_dim * z_.state},
                 {ddt_, 1, z_.chunk},
                 {da_, 1, z_.chunk}}) {}

  void operator()(std::int64_t sequence, std::int64_t group) {
    const std::int64_t begin = p_.sequences.begin(sequence), end = p_.sequences.end(sequence);
    dS_.zero();
    for (std::int64_t i = p_.chunks.count_of(sequence) - 1; i >= 0; --i) {
      const std::int64_t t0 = begin + i * z_.chunk;
      const ChunkPart at{group, p_.chunks.first_of(sequence) + i, t0, std::min(z_.chunk, end - t0)};
      dY_.rows = dX_.rows = dB_.rows = dC_.rows = at.n;
      rows_.load_inputs(p_, at);
      load<T>(dY_, dy_, t0, group * z_.group_channels);
      dB_.zero();
      dC_.zero();
      for (std::int64_t h = 0; h < z_.group_heads; ++h) head(at, h);
      store<T>(dX_, g_.x, t0, group * z_.group_channels);
      store<T>(dB_, g_.B, t0, group * z_.state);
      store<T>(dC_, g_.C, t0, group * z_.state);
    }
  }

 private:
  void head(const ChunkPart& at, std::int64_t h) {
    const HeadDecays<A> d = rows_.decays.head(h);
    const std::int64_t c0 = h * z_.head_dim, size = z_.head_dim * z_.state;
    const std::int64_t head = at.group * z_.group_heads + h;
    const A skip = p_.D.template data<A>()[head];
    // Row l: the state before token l.
    std::copy_n(group_states<A>(starts_, at.index, at.group, z_).row(c0), size, states_.row(0));
    for (std::int64_t l = 0; l < at.n; ++l) {
      std::copy_n(states_.row(l), size, states_.row(l + 1));
      advance(states_.row(l + 1), decay_at(d, l), d.dt[l], rows_.x.row(l) + c0, rows_.b.row(l), z_);
    }
    A* ds = dS_.row(h);
    A skip_sum = 0;
    for (std::int64_t l = at.n - 1; l >= 0; --l) {
      const A* x = rows_.x.row(l) + c0;
      const A* dy = dY_.row(l) + c0;
      A* dx = dX_.row(l) + c0;
      const A* before = states_.row(l);
      const A* after = states_.row(l + 1);
      const A decay = decay_at(d, l);
      A ddt = 0;
      for (std::int64_t q = 0; q < z_.head_dim; ++q) {
        A* row = ds + q * z_.state;
        add_scaled(row, dy[q], rows_.c.row(l), z_.state);
        add_scaled(dC_.row(l), dy[q], after + q * z_.state, z_.state);
        add_scaled(dB_.row(l), d.dt[l] * x[q], row, z_.state);
        const A through = dot(row, rows_.b.row(l), z_.state);
        dx[q] = d.dt[l] * through + skip * dy[q];
        ddt += x[q] * through;
        skip_sum += dy[q] * x[q];
      }
      ddt_.data[l] = ddt;
      da_.data[l] = decay * dot(ds, before, size);
      for (std::int64_t k = 0; k < size; ++k) ds[k] *= decay;
    }
    g_.D.row<A>(at.index)[head] = skip_sum;
    rows_.decays.write_gradients(g_, at, h, ddt_.data, da_.data);
  }

  const SsdProblem& p_;
  const SsdGradients& g_;
  const Tensor &dy_, &starts_;
  Sizes z_;
  Rows<T> rows_;
  Matrix<A> dY_, dX_;   // [n, group_channels]
  Matrix<A> dB_, dC_;   // [n, state]
  Matrix<A> states_;    // of one head, [n + 1, head_dim * state]
  Matrix<A> dS_;        // [group_heads, head_dim * state]
  Matrix<A> ddt_, da_;  // [1, n], of one head
  Workspace<A> memory_;
};

}  // namespace

void ssd_recurrent_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states) {
  run_kernels(problem, [&]<class T>(TypeTag<T>) { return RecurrentForward<T>(problem, y, states); });
}

void ssd_recurrent_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                            const Tensor& chunk_starts) {
  run_kernels(problem, [&]<class T>(TypeTag<T>) {
    return RecurrentBackward<T>(problem, gradients, dy, chunk_starts);
  });
}

}  // namespace nemocube::cpu
