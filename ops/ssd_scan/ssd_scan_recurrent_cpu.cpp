#include "ops/ssd_scan/ssd_scan_kernels.h"

/// The recurrence of the header, token by token: slow, and simple enough to be the yardstick.
namespace nemocube::cpu {
namespace {

using ssd::dot;
using ssd::load;
using ssd::Sizes;
using ssd::store;
using ssd::TimeSteps;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

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
struct Chunk {
  using A = acc_t<T>;
  std::vector<A> x, b, c, y;
  TimeSteps<T> steps;

  Chunk(const SsdProblem& p, const Sizes& z)
      : x(at(z.chunk * z.group_channels)), b(at(z.chunk * z.state)), c(b), y(x), steps(p, z) {}

  void load_inputs(const SsdProblem& p, const Sizes& z, std::int64_t group, std::int64_t t0, std::int64_t n) {
    load<T>(x.data(), p.x, t0, n, group * z.group_channels, z.group_channels);
    load<T>(b.data(), p.B, t0, n, group * z.state, z.state);
    load<T>(c.data(), p.C, t0, n, group * z.state, z.state);
    steps.fill(group, t0, n);
  }
  A decay(std::int64_t h, std::int64_t l) const {
    return vec_exp(steps.dt[h * steps.stride + l] * steps.rate[at(h)]);
  }
};

template <class T>
void forward(const SsdProblem& p, const Tensor& y, const SsdStates& states) {
  using A = acc_t<T>;
  const Sizes z(p);
  const std::int64_t size = z.head_dim * z.state;
  ssd::for_sequence_groups(p, [&] {
    return [&, chunk = Chunk<T>(p, z), state = std::vector<A>(at(z.group_heads * size))](
               std::int64_t sequence, std::int64_t group) mutable {
      const std::int64_t head0 = group * z.group_heads, all = z.group_heads * size;
      std::ranges::fill(state, A(0));
      if (p.initial_state.defined())
        std::copy_n(p.initial_state.template data<A>() + (sequence * z.heads + head0) * size, all,
                    state.data());
      std::int64_t index = p.first_chunk(sequence);
      for (std::int64_t t0 = p.sequences.begin(sequence); t0 < p.sequences.end(sequence); t0 += z.chunk) {
        const std::int64_t n = std::min(z.chunk, p.sequences.end(sequence) - t0);
        if (states.chunk_starts.defined())
          std::copy_n(state.data(), all,
                      states.chunk_starts.template data<A>() + (index++ * z.heads + head0) * size);
        chunk.load_inputs(p, z, group, t0, n);
        for (std::int64_t h = 0; h < z.group_heads; ++h) {
          const A skip = p.D.template data<A>()[head0 + h];
          A* s = state.data() + h * size;
          for (std::int64_t l = 0; l < n; ++l) {
            const A* x = &chunk.x[at(l * z.group_channels + h * z.head_dim)];
            A* to = &chunk.y[at(l * z.group_channels + h * z.head_dim)];
            advance(s, chunk.decay(h, l), chunk.steps.dt[h * chunk.steps.stride + l], x,
                    &chunk.b[at(l * z.state)], z);
            for (std::int64_t q = 0; q < z.head_dim; ++q)
              to[q] = dot(s + q * z.state, &chunk.c[at(l * z.state)], z.state) + skip * x[q];
          }
        }
        store<T>(chunk.y.data(), y, t0, n, group * z.group_channels, z.group_channels);
      }
      if (states.final.defined())
        std::copy_n(state.data(), all, states.final.template data<A>() + (sequence * z.heads + head0) * size);
    };
  });
}

/// One sequence and group, last chunk first: the states of a chunk are formed again from its start, then
/// walked backwards with ds, the gradient of the state that the future sends.
template <class T>
class Backward {
 public:
  using A = acc_t<T>;

  Backward(const SsdProblem& p, const SsdGradients& g, const Tensor& dy, const Tensor& starts)
      : p_(p),
        g_(g),
        dy_(dy),
        starts_(starts),
        z_(p),
        size_(z_.head_dim * z_.state),
        chunk_(p, z_),
        grad_y_(chunk_.x),
        grad_x_(chunk_.x),
        grad_b_(chunk_.b),
        grad_c_(chunk_.b),
        states_(at((z_.chunk + 1) * size_)),
        ds_(at(z_.group_heads * size_)),
        ddt_(at(z_.chunk)),
        da_(at(z_.chunk)) {}

  void operator()(std::int64_t sequence, std::int64_t group) {
    std::ranges::fill(ds_, A(0));
    const std::int64_t begin = p_.sequences.begin(sequence), length = p_.sequences.length(sequence);
    for (std::int64_t i = (length + z_.chunk - 1) / z_.chunk - 1; i >= 0; --i) {
      const std::int64_t t0 = begin + i * z_.chunk, n = std::min(z_.chunk, length - i * z_.chunk);
      chunk_.load_inputs(p_, z_, group, t0, n);
      load<T>(grad_y_.data(), dy_, t0, n, group * z_.group_channels, z_.group_channels);
      std::ranges::fill(grad_b_, A(0));
      std::ranges::fill(grad_c_, A(0));
      for (std::int64_t h = 0; h < z_.group_heads; ++h) head(p_.first_chunk(sequence) + i, group, h, t0, n);
      store<T>(grad_x_.data(), g_.x, t0, n, group * z_.group_channels, z_.group_channels);
      store<T>(grad_b_.data(), g_.B, t0, n, group * z_.state, z_.state);
      store<T>(grad_c_.data(), g_.C, t0, n, group * z_.state, z_.state);
    }
  }

 private:
  void head(std::int64_t index, std::int64_t group, std::int64_t h, std::int64_t t0, std::int64_t n) {
    const std::int64_t head = group * z_.group_heads + h, c0 = h * z_.head_dim;
    const A* dt = chunk_.steps.dt + h * chunk_.steps.stride;
    const A skip = p_.D.template data<A>()[head];
    A* ds = &ds_[at(h * size_)];
    std::copy_n(starts_.template data<A>() + (index * z_.heads + head) * size_, size_, states_.data());
    for (std::int64_t l = 0; l < n; ++l) {
      A* next = &states_[at((l + 1) * size_)];
      std::copy_n(next - size_, size_, next);
      advance(next, chunk_.decay(h, l), dt[l], &chunk_.x[at(l * z_.group_channels + c0)],
              &chunk_.b[at(l * z_.state)], z_);
    }
    A skip_sum = 0;
    for (std::int64_t l = n - 1; l >= 0; --l) {
      const A* x = &chunk_.x[at(l * z_.group_channels + c0)];
      const A* gy = &grad_y_[at(l * z_.group_channels + c0)];
      const A* b = &chunk_.b[at(l * z_.state)];
      const A* before = &states_[at(l * size_)];
      const A decay = chunk_.decay(h, l);
      ddt_[at(l)] = 0;
      for (std::int64_t q = 0; q < z_.head_dim; ++q) {
        A* row = ds + q * z_.state;
        add_scaled(row, gy[q], &chunk_.c[at(l * z_.state)], z_.state);
        add_scaled(&grad_c_[at(l * z_.state)], gy[q], before + size_ + q * z_.state, z_.state);
        add_scaled(&grad_b_[at(l * z_.state)], dt[l] * x[q], row, z_.state);
        const A through = dot(row, b, z_.state);
        grad_x_[at(l * z_.group_channels + c0 + q)] = dt[l] * through + skip * gy[q];
        ddt_[at(l)] += x[q] * through;
        skip_sum += gy[q] * x[q];
      }
      da_[at(l)] = decay * dot(ds, before, size_);
      for (std::int64_t k = 0; k < size_; ++k) ds[k] *= decay;
    }
    g_.D.row<A>(index)[head] = skip_sum;
    chunk_.steps.finish(h, group, t0, n, index, ddt_.data(), da_.data(), g_);
  }

  const SsdProblem& p_;
  const SsdGradients& g_;
  const Tensor &dy_, &starts_;
  Sizes z_;
  std::int64_t size_;
  Chunk<T> chunk_;
  std::vector<A> grad_y_, grad_x_, grad_b_, grad_c_, states_, ds_, ddt_, da_;
};

}  // namespace

void ssd_recurrent_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states) {
  visit_float("ssd_scan", problem.x.dtype(),
              [&](auto tag) { forward<typename decltype(tag)::type>(problem, y, states); });
}

void ssd_recurrent_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                            const Tensor& chunk_starts) {
  visit_float("ssd_scan", problem.x.dtype(), [&](auto tag) {
    ssd::for_sequence_groups(problem, [&] {
      return Backward<typename decltype(tag)::type>(problem, gradients, dy, chunk_starts);
    });
  });
}

}  // namespace nemocube::cpu
