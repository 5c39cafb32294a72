#include "parallel/mappings/mappings.h"

#include <functional>
#include <numeric>
#include <utility>

namespace nemocube {
namespace {

std::int64_t sum_of(std::span<const std::int64_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::vector<std::int64_t> elements(std::span<const std::int64_t> rows, std::int64_t columns) {
  std::vector<std::int64_t> counts;
  for (const std::int64_t r : rows) counts.push_back(r * columns);
  return counts;
}

Tensor rows_like(const Tensor& x, std::int64_t rows) {
  return Tensor::empty({rows, x.cols()}, x.dtype(), x.device());
}

Tensor summed(const Tensor& x, Communicator& group) {
  const Tensor y = x.unique() && x.contiguous() ? x : x.clone();
  group.all_reduce(y);
  return y;
}

Tensor gathered(const Tensor& x, std::span<const std::int64_t> rows, Communicator& group) {
  const Tensor y = rows_like(x, sum_of(rows));
  group.all_gather_v(y, x.as_contiguous(), elements(rows, x.cols()));
  return y;
}

Tensor scattered_sum(const Tensor& x, std::span<const std::int64_t> rows, Communicator& group) {
  const Tensor y = rows_like(x, rows[static_cast<std::size_t>(group.rank())]);
  group.reduce_scatter_v(y, x.as_contiguous(), elements(rows, x.cols()));
  return y;
}

Tensor own_part(const Tensor& x, std::span<const std::int64_t> rows, const Communicator& group) {
  const auto rank = static_cast<std::size_t>(group.rank());
  return x.narrow(0, sum_of(rows.first(rank)), rows[rank]);
}

/// `x` in this rank's rows, and zeros.
Tensor among_zeros(const Tensor& x, std::span<const std::int64_t> rows, const Communicator& group) {
  const Tensor y = Tensor::zeros({sum_of(rows), x.cols()}, x.dtype(), x.device());
  own_part(y, rows, group).copy_from(x);
  return y;
}

void check_rows(const char* name, const Tensor& x, std::span<const std::int64_t> rows, std::int64_t want,
                const Communicator& group) {
  expect(x.ndim() == 2 && std::ssize(rows) == group.size() && x.rows() == want, name, ": ", x.shape(),
         " for ", want, " rows of ", rows.size(), " ranks in a group of ", group.size());
}

/// y = forward(x), and dx = backward(dy).
template <class Backward>
Var mapped(Context& ctx, const char* name, const Var& x, Tensor y, Backward backward) {
  Var result = make_result(std::move(y), ctx.records({&x}));
  if (result.needs_grad())
    ctx.tape->record(name, [in = x.node(), out = result.node(), backward = std::move(backward)] {
      if (out->filled()) in->add(backward(out->take()));
    });
  return result;
}

}  // namespace

Var copy_to_ranks(Context& ctx, const Var& x, Communicator& group) {
  if (group.size() == 1) return x;
  return mapped(ctx, "copy_to_ranks", x, x.value(),
                [&group](Tensor dy) { return summed(std::move(dy), group); });
}

Var sum_over_ranks(Context& ctx, const Var& x, Communicator& group) {
  if (group.size() == 1) return x;
  const Tensor y = x.value().clone();
  group.all_reduce(y);
  return mapped(ctx, "sum_over_ranks", x, y, [](Tensor dy) { return dy; });
}

Var own_rows(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group) {
  if (group.size() == 1) return x;
  check_rows("own_rows", x.value(), rows, sum_of(rows), group);
  return mapped(ctx, "own_rows", x, own_part(x.value(), rows, group),
                [&group, all = std::vector(rows.begin(), rows.end())](const Tensor& dy) {
                  return gathered(dy, all, group);
                });
}

Var own_rows_to_sum(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group) {
  if (group.size() == 1) return x;
  check_rows("own_rows_to_sum", x.value(), rows, sum_of(rows), group);
  return mapped(ctx, "own_rows_to_sum", x, own_part(x.value(), rows, group),
                [&group, all = std::vector(rows.begin(), rows.end())](const Tensor& dy) {
                  return among_zeros(dy, all, group);
                });
}

Var own_rows_of_sum(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group) {
  if (group.size() == 1) return x;
  check_rows("own_rows_of_sum", x.value(), rows, rows[static_cast<std::size_t>(group.rank())], group);
  return mapped(ctx, "own_rows_of_sum", x, among_zeros(x.value(), rows, group),
                [&group, all = std::vector(rows.begin(), rows.end())](const Tensor& dy) {
                  return own_part(dy, all, group);
                });
}

Var sum_to_own_rows(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group) {
  if (group.size() == 1) return x;
  check_rows("sum_to_own_rows", x.value(), rows, sum_of(rows), group);
  return mapped(ctx, "sum_to_own_rows", x, scattered_sum(x.value(), rows, group),
                [&group, all = std::vector(rows.begin(), rows.end())](const Tensor& dy) {
                  return gathered(dy, all, group);
                });
}

Var all_rows(Context& ctx, const Var& x, std::span<const std::int64_t> rows, Communicator& group,
             Consumer consumer) {
  if (group.size() == 1) return x;
  check_rows("all_rows", x.value(), rows, rows[static_cast<std::size_t>(group.rank())], group);
  return mapped(ctx, "all_rows", x, gathered(x.value(), rows, group),
                [&group, consumer, all = std::vector(rows.begin(), rows.end())](const Tensor& dy) {
                  return consumer == Consumer::cut ? scattered_sum(dy, all, group)
                                                   : own_part(dy, all, group).clone();
                });
}

struct RowExchange::State {
  /// A started all_to_all_v and its result.
  struct Arriving {
    Tensor rows;  // undefined: nothing was started
    Work work;
  };
  Arriving start(const Tensor& from, std::span<const std::int64_t> in,
                 std::span<const std::int64_t> out) const {
    const Tensor rows = rows_like(from, sum_of(out));
    return {rows, group.start_all_to_all_v(rows, out, from.as_contiguous(), in)};
  }

  Var x;  // of a group of one rank, and where gradients are wanted
  std::vector<std::int64_t> in_rows, out_rows;
  Communicator& group;
  Arriving y = {}, dx = {};
};

RowExchange::RowExchange(Context& ctx, const Var& x, std::vector<std::int64_t> in_rows,
                         std::vector<std::int64_t> out_rows, Communicator& group)
    : state_(new State{{}, std::move(in_rows), std::move(out_rows), group}) {
  State& s = *state_;
  check_rows("exchange_rows", x.value(), s.in_rows, sum_of(s.in_rows), group);
  expect(s.in_rows.size() == s.out_rows.size(), "exchange_rows: rows to ", s.in_rows.size(), " ranks, from ",
         s.out_rows.size());
  if (group.size() == 1) {
    s.x = x;
    return;
  }
  s.y = s.start(x.value(), s.in_rows, s.out_rows);
  if (!ctx.records({&x})) return;
  s.x = Var(Tensor(), x.node());
  ctx.tape->record("exchange_rows", [state = state_] {
    if (!state->dx.rows) return;
    state->dx.work.wait();
    state->x.node()->add(std::exchange(state->dx.rows, {}));
  });
}

Var RowExchange::finish(Context& ctx) const {
  State& s = *state_;
  if (s.group.size() == 1) return s.x;
  s.y.work.wait();
  Var y = make_result(std::exchange(s.y.rows, {}), s.x.needs_grad());
  if (y.needs_grad())
    ctx.tape->record("exchange_rows", [state = state_, out = y.node()] {
      if (!out->filled()) return;
      state->dx = state->start(out->take(), state->out_rows, state->in_rows);
    });
  return y;
}

Var exchange_rows(Context& ctx, const Var& x, std::vector<std::int64_t> in_rows,
                  std::vector<std::int64_t> out_rows, Communicator& group) {
  return RowExchange(ctx, x, std::move(in_rows), std::move(out_rows), group).finish(ctx);
}

}  // namespace nemocube
