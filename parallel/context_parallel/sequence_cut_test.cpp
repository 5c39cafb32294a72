#include "parallel/context_parallel/sequence_cut.h"

#include <doctest/doctest.h>

#include "parallel/context_parallel/attention_pairs.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Rows = std::vector<std::int64_t>;

Rows values(const Tensor& t) {
  Rows result;
  for (const double x : t.to_vector()) result.push_back(static_cast<std::int64_t>(x));
  return result;
}

const Rows ragged{37, 0, 5, 1, 64, 3, 2};

}  // namespace

TEST_CASE("sequence cut: chunks of one row give the published tables") {
  struct Table {
    std::int64_t ranks;
    Rows rank_major, natural;  // the row taken for each place
  };
  for (const auto& [ranks, rank_major, natural] :
       {Table{1, {0, 1}, {0, 1}}, Table{2, {0, 3, 1, 2}, {0, 2, 3, 1}},
        Table{3, {0, 5, 1, 4, 2, 3}, {0, 2, 4, 5, 3, 1}},
        Table{4, {0, 7, 1, 6, 2, 5, 3, 4}, {0, 2, 4, 6, 7, 5, 3, 1}}}) {
    CAPTURE(ranks);
    const SequenceCut cut(Sequences::uniform(1, 2 * ranks), ranks, 0);
    CHECK(values(cut.to_rank_major_order(Device::cpu).source) == rank_major);
    CHECK(values(cut.to_natural_order(Device::cpu).source) == natural);
    for (std::int64_t r = 0; r < ranks; ++r) CHECK(cut.rows(r) == Rows{r, 2 * ranks - 1 - r});
  }
}

TEST_CASE("sequence cut: ragged sequences, shorter than the chunks and empty ones included") {
  const Sequences whole = Sequences::of_lengths(ragged);
  for (const std::int64_t ranks : {1, 2, 3, 4, 8, 100}) {
    CAPTURE(ranks);
    Rows all, lengths;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const SequenceCut cut(whole, ranks, r);
      const Sequences local = cut.local();
      local.check("local", std::ssize(cut.rows(r)));
      for (std::int64_t i = 0; i < local.tokens(); ++i)
        CHECK(local.positions()[static_cast<std::size_t>(i)] ==
              whole.positions()[static_cast<std::size_t>(cut.rows(r)[static_cast<std::size_t>(i)])]);
      CHECK(local.count() == whole.count());
      CHECK(cut.rows_of_ranks()[static_cast<std::size_t>(r)] == local.tokens());
      for (std::int64_t i = 0; i < whole.count(); ++i) {
        const auto even = even_sizes(whole.length(i), 2 * ranks);
        const auto [lower, upper] = cut.chunks(i, r);
        CHECK(lower.size() == even[static_cast<std::size_t>(r)]);
        CHECK(upper.size() == even[static_cast<std::size_t>(2 * ranks - 1 - r)]);
      }
      for (const std::int64_t row : cut.rows(r)) all.push_back(row);
      const Tensor ids = Tensor::from(even_sizes(112 * 55, whole.tokens()), {whole.tokens()});
      const Tensor own = cut.own(ids);
      for (std::int64_t i = 0; i < own.numel(); ++i)
        CHECK(own.data<std::int64_t>()[i] ==
              ids.data<std::int64_t>()[cut.rows(r)[static_cast<std::size_t>(i)]]);
    }
    const SequenceCut cut(whole, ranks, 0);
    const Permutation &to = cut.to_rank_major_order(Device::cpu), &back = cut.to_natural_order(Device::cpu);
    CHECK(values(to.source) == all);
    for (std::int64_t i = 0; i < whole.tokens(); ++i) {
      const auto* from = back.source.data<std::int32_t>();
      CHECK(to.source.data<std::int32_t>()[from[i]] == i);
      CHECK(to.slot.data<std::int32_t>()[i] == from[i]);
    }
  }
}

TEST_CASE("sequence cut: the tables of a microbatch are made once, for every layer and on each device") {
  const Sequences whole = Sequences::of_lengths(ragged);
  for (const Device device : {Device::cpu, Device::guard}) {
    const SequenceCut first(whole, 3, 1), second(whole, 3, 1), other(whole, 3, 2);
    CHECK(&first.local() == &second.local());
    CHECK(&first.local() == &other.local(1));
    CHECK(&first.to_natural_order(device) == &second.to_natural_order(device));
    CHECK(first.to_natural_order(device).source.device() == device);
    CHECK(&ring_step(first, 0, true, device) == &ring_step(second, 0, true, device));
    CHECK(&ring_step(first, 0, true, device) != &ring_step(first, 0, false, device));
    CHECK(&ring_step(first, 0, true, device) != &ring_step(other, 0, true, device));
    CHECK(ring_step(first, 0, true, device).pairs.table().device() == device);
    CHECK(&steps_over_all_keys(first, true, device) == &steps_over_all_keys(second, true, device));
  }
}

TEST_CASE("sequence cut: no sequences, no tokens, errors") {
  for (const Sequences& none : {Sequences(), Sequences::uniform(2, 0)}) {
    const SequenceCut cut(none, 3, 1);
    CHECK(cut.local().count() == none.count());
    CHECK(cut.rows_of_ranks() == Rows{0, 0, 0});
    CHECK(cut.to_natural_order(Device::cpu).source.numel() == 0);
    CHECK(cut.own(Tensor::zeros({0}, DType::i64, Device::cpu)).numel() == 0);
  }
  CHECK_THROWS_AS(SequenceCut(Sequences(), 2, 2), std::logic_error);
  CHECK_THROWS_AS(SequenceCut(Sequences(), 2, -1), std::logic_error);
  const SequenceCut cut(Sequences::uniform(1, 4), 2, 0);
  CHECK_THROWS_AS(cut.own(Tensor::zeros({5}, DType::i64, Device::cpu)), Error);
}

namespace {

/// How often each query of the microbatch meets each key: [T, T].
void count_pairs(std::vector<int>& met, const AttentionStep& step, const Rows& query_rows,
                 const Rows& key_rows, std::int64_t tokens) {
  for (const auto& [queries, keys] : step.pairs.list())
    for (std::int64_t i = 0; i < queries.size(); ++i)
      for (std::int64_t j = 0; j < keys.size(); ++j)
        if (!step.causal || j <= i + keys.size() - queries.size())
          ++met[static_cast<std::size_t>(query_rows[static_cast<std::size_t>(queries.begin + i)] * tokens +
                                         key_rows[static_cast<std::size_t>(keys.begin + j)])];
}

}  // namespace

TEST_CASE("attention pairs: every query meets every key that it sees once") {
  const Sequences whole = Sequences::of_lengths(ragged);
  const std::int64_t tokens = whole.tokens();
  Rows natural;
  for (std::int64_t i = 0; i < tokens; ++i) natural.push_back(i);
  for (const bool causal : {true, false}) {
    std::vector<int> want(static_cast<std::size_t>(tokens * tokens));
    for (std::int64_t s = 0; s < whole.count(); ++s)
      for (std::int64_t i = whole.begin(s); i < whole.end(s); ++i)
        for (std::int64_t j = whole.begin(s); j < (causal ? i + 1 : whole.end(s)); ++j)
          want[static_cast<std::size_t>(i * tokens + j)] = 1;
    for (const std::int64_t ranks : {1, 2, 3, 8}) {
      CAPTURE(ranks);
      std::vector<int> ring(want.size()), gathered(want.size());
      for (std::int64_t r = 0; r < ranks; ++r) {
        const SequenceCut cut(whole, ranks, r);
        for (std::int64_t owner = 0; owner < ranks; ++owner)
          count_pairs(ring, ring_step(cut, owner, causal, Device::cpu), cut.rows(r), cut.rows(owner), tokens);
        for (const AttentionStep& step : steps_over_all_keys(cut, causal, Device::cpu))
          count_pairs(gathered, step, cut.rows(r), natural, tokens);
      }
      CHECK((ring == want));
      CHECK((gathered == want));
    }
  }
}

TEST_CASE("attention pairs: causal work is the same on all ranks, and in all steps but the first") {
  const std::int64_t ranks = 4, chunk = 6;
  const Sequences whole = Sequences::uniform(3, 2 * ranks * chunk);
  for (std::int64_t r = 0; r < ranks; ++r)
    for (std::int64_t owner = 0; owner < ranks; ++owner) {
      const AttentionStep step = ring_step(SequenceCut(whole, ranks, r), owner, true, Device::cpu);
      std::int64_t work = 0;
      for (const auto& [queries, keys] : step.pairs.list()) work += queries.size() * keys.size();
      CHECK(step.causal == (owner == r));
      CHECK(work == (owner == r ? 4 : 2) * 3 * chunk * chunk);
    }
}
