#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "core/rng.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/relu2/relu2.h"
#include "parallel/expert_parallel/allgather_dispatcher.h"
#include "parallel/expert_parallel/alltoall_dispatcher.h"
#include "parallel/expert_parallel/test_grids.h"
#include "tests/support/compare.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr std::int64_t width = 5, inner = 7;

/// How tokens choose experts.
enum class Choose {
  any,         ///< k different ones
  one,         ///< all tokens the same k
  not_at_all,  ///< there are no tokens
};

/// The tokens of some world ranks, one rank after another. Every rank can make those of all.
struct Tokens {
  std::vector<std::int64_t> rows;  // of each rank
  Tensor x, dy, experts, weights;
};

Tensor joined(const std::vector<Tensor>& parts) {
  std::int64_t rows = 0, at = 0;
  for (const Tensor& part : parts) rows += part.rows();
  const Tensor all = Tensor::empty({rows, parts.at(0).cols()}, parts[0].dtype(), Device::cpu);
  for (const Tensor& part : parts) {
    all.narrow(0, at, part.rows()).copy_from(part);
    at += part.rows();
  }
  return all;
}

Tensor choices_of(int rank, std::int64_t tokens, std::int64_t k, std::int64_t experts, Choose choose) {
  const Tensor chosen = Tensor::empty({tokens, k}, DType::i32, Device::cpu);
  const RandomStream stream(17, cat("choices of ", rank));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto any = stream.below(static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(experts));
    const std::int64_t first = choose == Choose::any ? static_cast<std::int64_t>(any) : experts - k;
    auto* row = chosen.row<std::int32_t>(t);
    for (std::int64_t j = 0; j < k; ++j) row[j] = static_cast<std::int32_t>((first + j) % experts);
    std::sort(row, row + k);
  }
  return chosen;
}

Tokens make_tokens(std::span<const int> ranks, std::int64_t k, std::int64_t experts, DType dtype,
                   Choose choose) {
  Tokens all;
  std::vector<Tensor> x, dy, chosen, weights;
  for (const int rank : ranks) {
    const std::int64_t tokens = choose == Choose::not_at_all ? 0 : tokens_of(rank);
    const auto seed = static_cast<std::uint64_t>(rank);
    all.rows.push_back(tokens);
    x.push_back(random_tensor({tokens, width}, dtype, 100 + seed));
    dy.push_back(random_tensor({tokens, width}, dtype, 200 + seed));
    chosen.push_back(choices_of(rank, tokens, k, experts, choose));
    weights.push_back(random_tensor({tokens, k}, accumulate_dtype(dtype), 300 + seed));
  }
  all.x = joined(x);
  all.dy = joined(dy);
  all.experts = joined(chosen);
  all.weights = joined(weights);
  return all;
}

Tokens own_tokens(const Tokens& all, std::int64_t rank) {
  const std::int64_t first = std::accumulate(all.rows.begin(), all.rows.begin() + rank, std::int64_t{0}),
                     rows = all.rows[static_cast<std::size_t>(rank)];
  const auto part = [&](const Tensor& t) { return t.narrow(0, first, rows).clone(); };
  return {{rows}, part(all.x), part(all.dy), part(all.experts), part(all.weights)};
}

Routing routing_of(const Tokens& tokens, Var weights) {
  return {std::move(weights), {tokens.experts, {}}, {}, {}};
}

struct Results {
  Tensor y, dx, dweights, dup, ddown;
};

/// Squared-ReLU experts, forward and backward.
Results run(ExpertDispatcher& dispatcher, const Tokens& tokens, std::int64_t experts, const Tensor& up_weight,
            const Tensor& down_weight) {
  const Var x = Var::leaf(tokens.x), weights = Var::leaf(tokens.weights), up = Var::leaf(up_weight),
            down = Var::leaf(down_weight);
  Tape tape;
  Context ctx{.tape = &tape};
  Tensor host;
  const DispatchedRows sent = dispatcher.dispatch(ctx, x, routing_of(tokens, weights), experts, host);
  const Var rows = sent.receive(ctx), hidden = relu2(ctx, grouped_linear(ctx, rows, sent.offsets, up));
  const Var y = sent.combine(ctx, grouped_linear(ctx, hidden, sent.offsets, down));
  tape.backward(y, tokens.dy);
  return {y.value(), x.grad(), weights.grad(), up.grad(), down.grad()};
}

/// All experts' weights.
struct Weights {
  Weights(std::int64_t experts, DType dtype)
      : up(random_tensor({experts, inner, width}, dtype, 21)),
        down(random_tensor({experts, width, inner}, dtype, 22)) {}
  Tensor up, down;
};

template <class Dispatcher>
void check_identity(const ExpertGrid& grid, const char* name) {
  CAPTURE(grid.text());
  CAPTURE(name);
  const ExpertGroups groups = grid.groups();
  const std::int64_t experts = 2 * groups.ep.size();
  const Range here = experts_of(experts, groups.ep.size(), groups.ep.rank());
  const Tokens all = make_tokens(groups.tp_ep.members(), 1, experts, DType::f32, Choose::any);
  Tokens own = own_tokens(all, groups.tp_ep.rank());
  for (std::int64_t t = 0; t < own.x.rows(); ++t) {
    own.weights.row<float>(t)[0] = 1;
    own.x.row<float>(t)[0] = static_cast<float>(own.experts.row<std::int32_t>(t)[0]);
    own.x.row<float>(t)[1] = static_cast<float>(groups.ep.rank() + 100 * groups.expt_tp.rank());
    own.x.row<float>(t)[2] = static_cast<float>(t);
  }
  Context ctx;
  Dispatcher dispatcher(groups);
  Tensor host;
  const DispatchedRows sent = dispatcher.dispatch(ctx, own.x, routing_of(own, own.weights), experts, host);
  const Tensor rows = sent.receive(ctx).value();
  const auto* offsets = sent.offsets.data<std::int64_t>();
  REQUIRE(sent.offsets.shape() == Shape{here.size() + 1});
  REQUIRE(offsets[here.size()] == rows.rows());
  // The host knows the offsets where it has read the rows for each expert.
  REQUIRE(sent.host_offsets.defined() == std::is_same_v<Dispatcher, AllToAllDispatcher>);
  if (sent.host_offsets) CHECK_BITS(sent.host_offsets, sent.offsets);
  for (std::int64_t e = 0; e < here.size(); ++e)
    for (std::int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
      const float* row = rows.row<float>(r);
      CHECK(row[0] == static_cast<float>(here.begin + e));
      if (r == offsets[e]) continue;
      const float* before = rows.row<float>(r - 1);
      // Of a rank before, or of the same rank and a later token.
      const bool allgather = std::is_same_v<Dispatcher, AllGatherDispatcher>;
      const auto source = [&](const float* of) {
        const auto place = static_cast<int>(of[1]);
        return allgather ? place % 100 * 100 + place / 100 : place;
      };
      CHECK(std::pair(source(before), before[2]) < std::pair(source(row), row[2]));
    }

  // Each choice arrives once at each slice of its expert.
  const Tensor arrived = Tensor::from<std::int64_t>({rows.rows()}, {1});
  groups.tp_ep.all_reduce(arrived);
  CHECK(arrived.item<std::int64_t>() == groups.expt_tp.size() * all.x.rows());

  // One slice of each expert is the identity, the others give zeros.
  const Tensor results =
      groups.expt_tp.rank() == 0 ? rows : Tensor::zeros(rows.shape(), rows.dtype(), Device::cpu);
  CHECK_BITS(sent.combine(ctx, results).value(), own.x);
}

}  // namespace

TEST_CASE("dispatchers: rows arrive sorted by expert and source; identity experts give the input back") {
  on_expert_grids([](const ExpertGrid& grid) {
    check_identity<AllToAllDispatcher>(grid, "alltoall");
    check_identity<AllGatherDispatcher>(grid, "allgather");
  });
}

TEST_CASE("dispatchers: alltoall has the bits of LocalDispatcher, allgather differs by rounding") {
  on_expert_grids([](const ExpertGrid& grid) {
    if (grid.sizes.expt_tp > 1) return;
    const ExpertGroups groups = grid.groups();
    const std::int64_t experts = 3 * groups.ep.size(), k = 3;
    const Range here = experts_of(experts, groups.ep.size(), groups.ep.rank());
    CAPTURE(grid.text());
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Choose choose : {Choose::any, Choose::one, Choose::not_at_all}) {
        CAPTURE(dtype);
        CAPTURE(static_cast<int>(choose));
        const Weights weights(experts, dtype);
        const auto part = [&](const Tensor& t) { return t.narrow(0, here.begin, here.size()); };
        const Tokens all = make_tokens(groups.tp_ep.members(), k, experts, dtype, choose);
        const Tokens own = own_tokens(all, groups.tp_ep.rank());
        LocalDispatcher local;
        const Results whole = run(local, all, experts, weights.up, weights.down);
        const auto own_rows_of = [&](const Tensor& t) {
          const auto rank = static_cast<std::ptrdiff_t>(groups.tp_ep.rank());
          const auto first = std::accumulate(all.rows.begin(), all.rows.begin() + rank, std::int64_t{0});
          return t.narrow(0, first, own.x.rows());
        };
        AllToAllDispatcher alltoall(groups);
        const Results sent = run(alltoall, own, experts, part(weights.up), part(weights.down));
        CHECK_BITS(sent.y, own_rows_of(whole.y));
        CHECK_BITS(sent.dx, own_rows_of(whole.dx));
        CHECK_BITS(sent.dweights, own_rows_of(whole.dweights));
        CHECK_BITS(sent.dup, part(whole.dup));
        CHECK_BITS(sent.ddown, part(whole.ddown));

        AllGatherDispatcher allgather(groups);
        const Results gathered = run(allgather, own, experts, part(weights.up), part(weights.down));
        // Up to k partial sums instead of one, each stored and then added.
        const double tolerance = 2 * k * (dtype == DType::f32 ? 0x1p-24 : 0x1p-9);
        CHECK(relative_error(gathered.y, own_rows_of(whole.y)) < tolerance);
        CHECK(relative_error(gathered.dx, own_rows_of(whole.dx)) < tolerance);
        CHECK_BITS(gathered.dweights, own_rows_of(whole.dweights));
        CHECK_BITS(gathered.dup, part(whole.dup));
        CHECK_BITS(gathered.ddown, part(whole.ddown));
      }
  });
}

namespace {

std::int64_t bytes_sent(const Communicator& group) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < operation_count; ++i) sum += group.stats(static_cast<Operation>(i)).bytes_sent;
  return sum;
}

/// The S, V, Q and A of AllToAllDispatcher's formula.
struct RowsSent {
  std::int64_t leave = 0, arrive = 0, exchanged = 0, of_all_slices = 0;
};
RowsSent count_rows(const ExpertGroups& groups, const Tokens& all, std::int64_t experts) {
  const std::int64_t slices = groups.expt_tp.size(), place = groups.ep.rank();
  const auto rows_to = [&](std::int64_t rank, std::int64_t ep_rank) {
    const Range there = experts_of(experts, groups.ep.size(), ep_rank);
    return std::ranges::count_if(own_tokens(all, rank).experts.to_vector(), [&](double e) {
      return e >= static_cast<double>(there.begin) && e < static_cast<double>(there.end);
    });
  };
  RowsSent rows;
  for (std::int64_t rank = 0; rank < groups.tp_ep.size(); ++rank) {
    const std::int64_t here = rows_to(rank, place);
    rows.of_all_slices += here;
    if (rank % slices != groups.expt_tp.rank()) continue;
    rows.exchanged += here;
    if (rank == groups.tp_ep.rank()) continue;
    rows.arrive += here;
    rows.leave += rows_to(groups.tp_ep.rank(), rank / slices);
  }
  return rows;
}

}  // namespace

TEST_CASE("dispatchers: bytes sent are those of the formulas") {
  on_expert_grids([](const ExpertGrid& grid) {
    if (grid.sizes.ep * grid.sizes.expt_tp == 1) return;
    CAPTURE(grid.text());
    const ExpertGroups groups = grid.groups();
    const std::int64_t experts = 3 * groups.ep.size(), k = 3, n = groups.tp_ep.size();
    const std::int64_t row = width * size_of(DType::bf16), choices = k * size_of(DType::i32),
                       weights = k * size_of(DType::f32);
    const Range here = experts_of(experts, groups.ep.size(), groups.ep.rank()),
                slice = slice_of(inner, groups.expt_tp);
    const Weights whole(experts, DType::bf16);
    const Tensor up = local_part(Shard(whole.up.shape()).cut(0, here).cut(1, slice), whole.up),
                 down = local_part(Shard(whole.down.shape()).cut(0, here).cut(2, slice), whole.down);
    const Tokens all = make_tokens(groups.tp_ep.members(), k, experts, DType::bf16, Choose::any);
    const Tokens own = own_tokens(all, groups.tp_ep.rank());
    const auto bytes = [&] {
      return std::array{bytes_sent(groups.tp_ep), bytes_sent(groups.ep), bytes_sent(groups.expt_tp)};
    };
    const auto check = [&](ExpertDispatcher& dispatcher, const std::array<std::int64_t, 3>& want) {
      const auto before = bytes();
      run(dispatcher, own, experts, up, down);
      const auto after = bytes();
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        CHECK(after[i] - before[i] == want[i]);
      }
    };
    const std::int64_t tokens = own.x.rows(), others = all.x.rows() - tokens;
    AllGatherDispatcher allgather(groups);
    check(allgather, {(n - 1) * (8 + tokens * (row + choices + weights)) + others * row +
                          (n - 1) * tokens * row + others * (row + weights),
                      0, 0});
    const RowsSent sent = count_rows(groups, all, experts);
    AllToAllDispatcher alltoall(groups);
    check(alltoall,
          {8 * experts * (n - 1), 2 * (sent.leave + sent.arrive) * row,
           2 * ((groups.expt_tp.size() - 1) * sent.exchanged + sent.of_all_slices - sent.exchanged) * row});
  });
}

TEST_CASE("dispatchers: rows that do not fit are errors on the rank that has them") {
  const std::unique_ptr<Communicator> self = self_communicator("self", 0);
  const ExpertGroups groups(*self, *self, *self);
  const Tokens own = make_tokens(std::array{0}, 2, 4, DType::f32, Choose::any);
  Context ctx;
  AllToAllDispatcher alltoall(groups);
  AllGatherDispatcher allgather(groups);
  for (ExpertDispatcher* dispatcher :
       {static_cast<ExpertDispatcher*>(&alltoall), static_cast<ExpertDispatcher*>(&allgather)}) {
    const Routing routing = routing_of(own, own.weights);
    Tensor host, other;
    CHECK_THROWS_AS(dispatcher->dispatch(ctx, own.x.narrow(0, 0, 4), routing, 4, host), Error);
    CHECK_THROWS_AS(dispatcher->dispatch(ctx, own.x, routing, 3, other), Error);
    const DispatchedRows sent = dispatcher->dispatch(ctx, own.x, routing, 4, host);
    CHECK_THROWS_AS(sent.combine(ctx, sent.receive(ctx).value().narrow(0, 0, 9)), Error);
  }
}
