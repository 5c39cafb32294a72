#include "parallel/mappings/mappings.h"

#include <doctest/doctest.h>

#include <functional>
#include <numeric>

#include "tests/support/compare.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr std::int64_t columns = 3;

Communicator& group() { return test_world().communicator(); }

/// What each rank has: `rows` rows drawn from its number.
Tensor of_rank(int rank, std::int64_t rows, std::uint64_t seed) {
  return random_tensor({rows, columns}, DType::f64, 100 * seed + static_cast<std::uint64_t>(rank));
}

Tensor sum_of_ranks(std::int64_t rows, std::uint64_t seed) {
  const Tensor sum = of_rank(0, rows, seed).clone();
  for (int r = 1; r < group().size(); ++r) {
    const Tensor next = of_rank(r, rows, seed);
    for (std::int64_t i = 0; i < sum.numel(); ++i) sum.data<double>()[i] += next.data<double>()[i];
  }
  return sum;
}

Tensor joined(const std::vector<std::int64_t>& rows, std::uint64_t seed) {
  const Tensor all = Tensor::empty({std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), columns},
                                   DType::f64, Device::cpu);
  std::int64_t at = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    all.narrow(0, at, rows[r]).copy_from(of_rank(static_cast<int>(r), rows[r], seed));
    at += rows[r];
  }
  return all;
}

Tensor part(const Tensor& all, const std::vector<std::int64_t>& rows) {
  const auto rank = static_cast<std::size_t>(group().rank());
  return all
      .narrow(0, std::accumulate(rows.begin(), rows.begin() + group().rank(), std::int64_t{0}), rows[rank])
      .clone();
}

/// y and dx of an operation, for this x and dy.
struct Result {
  Tensor y, dx;
};
Result run(const Tensor& x, const Tensor& dy, const std::function<Var(Context&, const Var&)>& operation) {
  Tape tape;
  Context ctx{.tape = &tape};
  const Var in(x, std::make_shared<GradNode>(x.shape(), x.dtype(), Device::cpu, false));
  const Var y = operation(ctx, in);
  tape.backward(y, dy);
  return {y.value(), in.node()->take()};
}

/// Rows of each rank, some of them 0.
std::vector<std::int64_t> uneven() {
  std::vector<std::int64_t> rows;
  for (int r = 0; r < group().size(); ++r) rows.push_back(r % 3 == 1 ? 0 : 2 + r);
  return rows;
}

}  // namespace

TEST_CASE("mappings: copies and sums") {
  const int rank = group().rank();
  const Result copy = run(of_rank(0, 4, 1), of_rank(rank, 4, 2),
                          [](Context& c, const Var& x) { return copy_to_ranks(c, x, group()); });
  CHECK_BITS(copy.y, of_rank(0, 4, 1));
  CHECK_BITS(copy.dx, sum_of_ranks(4, 2));
  const Result sum = run(of_rank(rank, 4, 3), of_rank(0, 4, 4),
                         [](Context& c, const Var& x) { return sum_over_ranks(c, x, group()); });
  CHECK_BITS(sum.y, sum_of_ranks(4, 3));
  CHECK_BITS(sum.dx, of_rank(0, 4, 4));
}

TEST_CASE("mappings: rows that ranks share, and that they gather") {
  const int rank = group().rank();
  const auto rows = uneven();
  const std::int64_t own = rows[static_cast<std::size_t>(rank)], all = joined(rows, 0).dim(0);
  const Result cut = run(of_rank(0, all, 1), of_rank(rank, own, 2),
                         [&](Context& c, const Var& x) { return own_rows(c, x, rows, group()); });
  CHECK_BITS(cut.y, part(of_rank(0, all, 1), rows));
  CHECK_BITS(cut.dx, joined(rows, 2));
  // Zeros on other ranks: what ranks have adds up to the whole.
  const auto among_zeros = [&](const Tensor& x) {
    const Tensor whole = Tensor::zeros({all, columns}, DType::f64, Device::cpu);
    const std::int64_t begin = std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
    whole.narrow(0, begin, own).copy_from(x);
    return whole;
  };
  const Result to_sum = run(of_rank(0, all, 1), of_rank(rank, own, 2),
                            [&](Context& c, const Var& x) { return own_rows_to_sum(c, x, rows, group()); });
  CHECK_BITS(to_sum.y, cut.y);
  CHECK_BITS(to_sum.dx, among_zeros(of_rank(rank, own, 2)));
  const Result of_sum = run(of_rank(rank, own, 2), of_rank(0, all, 1),
                            [&](Context& c, const Var& x) { return own_rows_of_sum(c, x, rows, group()); });
  if (group().size() > 1) CHECK_BITS(of_sum.y, among_zeros(of_rank(rank, own, 2)));
  CHECK_BITS(of_sum.dx.clone(), cut.y);
  const Result sum = run(of_rank(rank, all, 3), of_rank(rank, own, 4),
                         [&](Context& c, const Var& x) { return sum_to_own_rows(c, x, rows, group()); });
  CHECK_BITS(sum.y, part(sum_of_ranks(all, 3), rows));
  CHECK_BITS(sum.dx, joined(rows, 4));
  for (const Consumer consumer : {Consumer::cut, Consumer::replicated}) {
    const bool parts = consumer == Consumer::cut;
    const Result gathered =
        run(of_rank(rank, own, 5), of_rank(parts ? rank : 0, all, 6),
            [&](Context& c, const Var& x) { return all_rows(c, x, rows, group(), consumer); });
    CHECK_BITS(gathered.y, joined(rows, 5));
    CHECK_BITS(gathered.dx, part(parts ? sum_of_ranks(all, 6) : of_rank(0, all, 6), rows));
  }
}

TEST_CASE("mappings: rows that ranks exchange come back in backward") {
  const int rank = group().rank(), ranks = group().size();
  // Rank a sends (a + 2 b) mod 3 rows to rank b.
  std::vector<std::int64_t> in, out;
  for (int r = 0; r < ranks; ++r) {
    in.push_back((rank + 2 * r) % 3);
    out.push_back((r + 2 * rank) % 3);
  }
  const std::int64_t sent = std::accumulate(in.begin(), in.end(), std::int64_t{0}),
                     received = std::accumulate(out.begin(), out.end(), std::int64_t{0});
  const Tensor x = of_rank(rank, sent, 7);
  const auto there = [&](Context& c, const Var& v) { return exchange_rows(c, v, in, out, group()); };
  const Result once = run(x, of_rank(rank, received, 8), there);
  CHECK(once.y.dim(0) == received);
  Context ctx;
  CHECK_BITS(exchange_rows(ctx, once.y, out, in, group()).value(), x);
  CHECK_BITS(once.dx, exchange_rows(ctx, of_rank(rank, received, 8), out, in, group()).value());
  for (int r = 0, at = 0; r < ranks; at += static_cast<int>(out[static_cast<std::size_t>(r++)])) {
    // What rank r sent to this rank follows what it sent to lower ranks.
    std::int64_t before = 0, all = 0;
    for (int b = 0; b < ranks; ++b) {
      before += b < rank ? (r + 2 * b) % 3 : 0;
      all += (r + 2 * b) % 3;
    }
    const std::int64_t count = out[static_cast<std::size_t>(r)];
    CHECK_BITS(once.y.narrow(0, at, count).clone(), of_rank(r, all, 7).narrow(0, before, count).clone());
  }
}

TEST_CASE(
    "mappings: an exchange in two parts is the whole one, with other operations between the parts, backward "
    "too") {
  const int rank = group().rank(), ranks = group().size();
  std::vector<std::int64_t> in, out;
  for (int r = 0; r < ranks; ++r) {
    in.push_back((rank + 2 * r) % 3);
    out.push_back((r + 2 * rank) % 3);
  }
  const auto sum_of = [](const std::vector<std::int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  };
  const Tensor x = of_rank(rank, sum_of(in), 7), dy = of_rank(rank, sum_of(out), 8);
  const Result whole =
      run(x, dy, [&](Context& c, const Var& v) { return exchange_rows(c, v, in, out, group()); });
  std::vector<std::string> order;
  const Result parts = run(x, dy, [&](Context& c, const Var& v) {
    const Var before = make_result(v.value(), true);
    c.tape->record("before", [&order, from = before.node(), to = v.node()] {
      order.push_back(from->filled() ? "arrived" : "nothing before");
      to->add(from->take());
    });
    const RowExchange exchange(c, before, in, out, group());
    c.tape->record("between", [&order, node = before.node()] {
      order.push_back(node->filled() ? "too early" : "between");
    });
    return exchange.finish(c);
  });
  CHECK_BITS(parts.y, whole.y);
  CHECK_BITS(parts.dx, whole.dx);
  // The gradient is on its way while what was recorded between the parts runs.
  if (ranks > 1) CHECK(order == std::vector<std::string>{"between", "arrived"});
}
