#include "parallel/context_parallel/sequence_cut.h"

#include <doctest/doctest.h>

#include <algorithm>

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
    const AttentionOptions causal, all{.causal = false}, window{.window = 3}, wider{.window = 4};
    CHECK(&ring_steps(first, 0, causal, device) == &ring_steps(second, 0, causal, device));
    CHECK(&ring_steps(first, 0, causal, device) != &ring_steps(first, 0, all, device));
    CHECK(&ring_steps(first, 0, causal, device) != &ring_steps(first, 0, window, device));
    CHECK(&ring_steps(first, 0, wider, device) != &ring_steps(first, 0, window, device));
    CHECK(&ring_steps(first, 0, causal, device) != &ring_steps(other, 0, causal, device));
    CHECK(ring_steps(first, 0, causal, device)[0].pairs.table().device() == device);
    CHECK(&steps_over_all_keys(first, causal, device) == &steps_over_all_keys(second, causal, device));
    CHECK(&steps_over_all_keys(first, causal, device) != &steps_over_all_keys(first, window, device));
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
void count_pairs(std::vector<int>& met, const AttentionStep& step, const AttentionOptions& options,
                 const Rows& query_rows, const Rows& key_rows, std::int64_t tokens) {
  std::vector<int> times_of_query(query_rows.size()), times_of_key(key_rows.size());
  for (const auto& [queries, keys, distance] : step.pairs.list()) {
    for (std::int64_t i = 0; i < queries.size(); ++i)
      for (std::int64_t j = 0; j < keys.size(); ++j) {
        const std::int64_t q = query_rows[static_cast<std::size_t>(queries.begin + i)],
                           k = key_rows[static_cast<std::size_t>(keys.begin + j)];
        if (options.window > 0 || options.slopes) CHECK(q - k == i + distance - j);
        if (!step.causal || (j <= i + distance && (options.window == 0 || j > i + distance - options.window)))
          ++met[static_cast<std::size_t>(q * tokens + k)];
      }
    for (std::int64_t i = queries.begin; i < queries.end; ++i) ++times_of_query[static_cast<std::size_t>(i)];
    for (std::int64_t j = keys.begin; j < keys.end; ++j) ++times_of_key[static_cast<std::size_t>(j)];
  }
  // Within a call ranges are disjoint.
  CHECK(std::ranges::all_of(times_of_query, [](int n) { return n <= 1; }));
  CHECK(std::ranges::all_of(times_of_key, [](int n) { return n <= 1; }));
}

}  // namespace

TEST_CASE("attention pairs: every query meets every key that it sees once") {
  const Sequences whole = Sequences::of_lengths(ragged);
  const std::int64_t tokens = whole.tokens();
  Rows natural;
  for (std::int64_t i = 0; i < tokens; ++i) natural.push_back(i);
  const Tensor slopes = Tensor::zeros({1}, DType::f32, Device::cpu);
  for (const AttentionOptions& options :
       {AttentionOptions{}, AttentionOptions{.causal = false}, AttentionOptions{.window = 1},
        AttentionOptions{.window = 7}, AttentionOptions{.window = 1000}, AttentionOptions{.slopes = slopes},
        AttentionOptions{.causal = false, .slopes = slopes}}) {
    const bool causal = options.causal;
    CAPTURE(causal);
    CAPTURE(options.window);
    std::vector<int> want(static_cast<std::size_t>(tokens * tokens));
    for (std::int64_t s = 0; s < whole.count(); ++s)
      for (std::int64_t i = whole.begin(s); i < whole.end(s); ++i)
        for (std::int64_t j = whole.begin(s); j < (causal ? i + 1 : whole.end(s)); ++j)
          want[static_cast<std::size_t>(i * tokens + j)] = options.window == 0 || j > i - options.window;
    for (const std::int64_t ranks : {1, 2, 3, 8}) {
      CAPTURE(ranks);
      std::vector<int> ring(want.size()), gathered(want.size());
      for (std::int64_t r = 0; r < ranks; ++r) {
        const SequenceCut cut(whole, ranks, r);
        for (std::int64_t owner = 0; owner < ranks; ++owner)
          for (const AttentionStep& step : ring_steps(cut, owner, options, Device::cpu))
            count_pairs(ring, step, options, cut.rows(r), cut.rows(owner), tokens);
        for (const AttentionStep& step : steps_over_all_keys(cut, options, Device::cpu))
          count_pairs(gathered, step, options, cut.rows(r), natural, tokens);
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
      const SequenceCut cut(whole, ranks, r);
      const std::vector<AttentionStep>& steps = ring_steps(cut, owner, {}, Device::cpu);
      CHECK(steps.size() == 1);
      const AttentionStep& step = steps[0];
      std::int64_t work = 0;
      for (const auto& [queries, keys, distance] : step.pairs.list()) work += queries.size() * keys.size();
      CHECK(step.causal == (owner == r));
      CHECK(work == (owner == r ? 4 : 2) * 3 * chunk * chunk);
    }
}

TEST_CASE("attention pairs: chunks outside of the window are left out") {
  const std::int64_t ranks = 4, chunk = 6;
  const Sequences whole = Sequences::uniform(1, 2 * ranks * chunk);
  const AttentionOptions options{.window = chunk};
  std::int64_t pairs = 0, gathered_keys = 0;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const SequenceCut cut(whole, ranks, r);
    for (std::int64_t owner = 0; owner < ranks; ++owner)
      for (const AttentionStep& step : ring_steps(cut, owner, options, Device::cpu))
        pairs += std::ssize(step.pairs.list());
    for (const AttentionStep& step : steps_over_all_keys(cut, options, Device::cpu))
      gathered_keys += step.pairs.list()[0].keys.size();
  }
  // Each chunk meets itself and the one before it, of which it needs all rows but the first.
  CHECK(pairs == 2 * ranks + 2 * ranks - 1);
  CHECK(gathered_keys == 2 * ranks * chunk + (2 * ranks - 1) * (chunk - 1));
}
