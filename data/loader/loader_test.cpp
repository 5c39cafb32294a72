#include "data/loader/loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "data/datasets/mock.h"
#include "data/datasets/permutation.h"

using namespace nemocube;

namespace {

std::shared_ptr<const Dataset> mock(std::int64_t rows) {
  return std::make_shared<MockDataset>(
      MockOptions{.vocab_size = 50, .seq_length = 4, .num_samples = rows, .seed = 1});
}

using Names = std::vector<std::string>;

Names epoch(Loader& loader) {
  Names names;
  while (!loader.epoch_done()) {
    const Batch batch = loader.next();
    names.insert(names.end(), batch.ids.begin(), batch.ids.end());
  }
  return names;
}

/// Rows of `mock` that a loader may make ahead of time. Row `bad` throws; `others` counts the rows that
/// another thread than the first one made.
class OnDemand final : public Dataset {
 public:
  explicit OnDemand(std::int64_t rows, std::int64_t bad = -1) : rows_(mock(rows)), bad_(bad) {}
  std::int64_t size() const override { return rows_->size(); }
  Sample sample(std::int64_t i) const override {
    if (std::this_thread::get_id() != first_) ++others;
    require(i != bad_, "row ", i, " is bad");
    return rows_->sample(i);
  }
  bool made_on_demand() const override { return true; }
  mutable std::atomic<std::int64_t> others = 0;

 private:
  std::shared_ptr<const Dataset> rows_;
  std::int64_t bad_;
  std::thread::id first_ = std::this_thread::get_id();
};

}  // namespace

TEST_CASE("loader: in order, the last batch short or dropped") {
  Loader loader(mock(7), {.batch_size = 3});
  CHECK(loader.batches_per_epoch() == 3);
  CHECK(loader.next().ids == Names{"mock 0", "mock 1", "mock 2"});
  CHECK(loader.next().samples == 3);
  CHECK(loader.next().samples == 1);
  CHECK(loader.epoch_done());
  CHECK_THROWS_AS(loader.next(), std::logic_error);
  loader.start_epoch(1);
  CHECK(epoch(loader).size() == 7);

  Loader dropping(mock(7), {.batch_size = 3, .drop_last = true});
  CHECK(dropping.batches_per_epoch() == 2);
  CHECK(epoch(dropping).size() == 6);
}

TEST_CASE("loader: groups of microbatches end with the epoch") {
  Loader loader(mock(7), {.batch_size = 2});
  CHECK(loader.next_group(3).size() == 3);
  CHECK(loader.next_group(3).size() == 1);
  CHECK(loader.next_group(3).empty());
}

TEST_CASE("loader: shuffled by seed and epoch") {
  Loader a(mock(50), {.batch_size = 4, .shuffle = true, .seed = 5});
  Loader b(mock(50), {.batch_size = 4, .shuffle = true, .seed = 5});
  Loader c(mock(50), {.batch_size = 4, .shuffle = true, .seed = 6});
  const Names first = epoch(a);
  CHECK(std::set<std::string>(first.begin(), first.end()).size() == 50);
  CHECK(first == epoch(b));
  CHECK(first != epoch(c));
  a.start_epoch(1);
  const Names second = epoch(a);
  CHECK(second != first);
  c.start_epoch(0);
  CHECK(second == epoch(c));  // the key is seed + epoch
  for (std::size_t i = 0; i < 50; ++i) CHECK(first[i] == cat("mock ", permutation(50, 5)[i]));
}

TEST_CASE("loader: going on from a saved position is as if nothing happened") {
  for (const bool shuffle : {false, true})
    for (std::int64_t stop : {0, 1, 3, 6}) {
      CAPTURE(shuffle);
      CAPTURE(stop);
      const LoaderOptions options{.batch_size = 2, .shuffle = shuffle};
      Loader whole(mock(11), options), second(mock(11), options);
      whole.start_epoch(3);
      for (std::int64_t i = 0; i < stop; ++i) whole.next();
      const Json saved = Json::parse(dump_json(to_json(whole.state())));
      second.restore(loader_state_from_json(JsonView(saved, "state.json")));
      CHECK(second.state() == whole.state());
      CHECK(second.epoch() == 3);
      CHECK(second.epoch_done() == whole.epoch_done());
      CHECK(epoch(second) == epoch(whole));
    }
}

TEST_CASE("loader: what a step sees does not depend on the number of ranks") {
  for (const bool shuffle : {false, true}) {
    Loader alone(mock(29), {.batch_size = 6, .shuffle = shuffle});
    std::vector<Loader> ranks;
    for (std::int64_t r = 0; r < 3; ++r)
      ranks.emplace_back(mock(29),
                         LoaderOptions{.batch_size = 2, .shuffle = shuffle, .dp_rank = r, .dp_size = 3});
    for (int step = 0; step < 4; ++step) {
      const Names want = alone.next().ids;
      Names got(want.size());
      for (std::size_t r = 0; r < 3; ++r) {
        const Batch batch = ranks[r].next();
        REQUIRE(batch.samples == 2);
        for (std::size_t j = 0; j < 2; ++j) got[r + 3 * j] = batch.ids[j];
        CHECK(ranks[r].state() == alone.state());
      }
      CHECK(got == want);
    }
    // The last five rows: two for each of the first ranks, one for the last.
    const Names want = alone.next().ids;
    REQUIRE(want.size() == 5);
    for (std::size_t r = 0; r < 3; ++r) {
      const Batch batch = ranks[r].next();
      CHECK(batch.samples == (r < 2 ? 2 : 1));
      for (std::size_t j = 0; j < batch.ids.size(); ++j) CHECK(batch.ids[j] == want[r + 3 * j]);
      CHECK(ranks[r].epoch_done());
    }
  }
}

TEST_CASE("loader: the numbers of rows do not depend on the number of ranks, and none is given twice") {
  for (const bool shuffle : {false, true})
    for (const std::int64_t dp_size : {1, 2, 3, 4}) {
      CAPTURE(dp_size);
      Loader alone(mock(13), {.batch_size = 3, .shuffle = shuffle});
      std::map<std::int64_t, std::string> want, got;
      std::vector<std::int64_t> in_order;
      for (std::int64_t e = 0; e < 3; ++e)
        for (alone.start_epoch(e); !alone.epoch_done();) {
          const Batch batch = alone.next();
          in_order.insert(in_order.end(), batch.row_numbers.begin(), batch.row_numbers.end());
          for (std::size_t i = 0; i < batch.ids.size(); ++i)
            CHECK(want.emplace(batch.row_numbers.at(i), batch.ids[i]).second);
        }
      CHECK(want.size() == 3 * 13);
      CHECK(std::ranges::is_sorted(in_order));
      for (std::int64_t r = 0; r < dp_size; ++r) {
        Loader rank(mock(13), {.batch_size = 2, .shuffle = shuffle, .dp_rank = r, .dp_size = dp_size});
        for (std::int64_t e = 0; e < 3; ++e)
          for (rank.start_epoch(e); !rank.epoch_done();) {
            const Batch batch = rank.next();
            CHECK(numbered_without_padding({&batch, 1})[0].sequences.count() == batch.samples);
            for (std::size_t i = 0; i < batch.ids.size(); ++i)
              CHECK(got.emplace(batch.row_numbers.at(i), batch.ids[i]).second);
          }
      }
      CHECK(got == want);
    }
}

TEST_CASE("loader: the number of batches in an epoch") {
  // SQuAD's training part on two ranks.
  LoaderOptions options{.batch_size = 64, .drop_last = true, .dp_rank = 1, .dp_size = 2};
  CHECK(Loader(mock(87'599), options).batches_per_epoch() == 684);
  options.drop_last = false;
  CHECK(Loader(mock(87'599), options).batches_per_epoch() == 685);
  for (const std::int64_t rows : {4, 7, 12, 13})
    for (const std::int64_t dp : {1, 2, 4})
      for (const std::int64_t local : {1, 3})
        for (const bool drop_last : {false, true}) {
          options = {.batch_size = local, .drop_last = drop_last, .dp_rank = dp - 1, .dp_size = dp};
          if (drop_last && rows < dp * local) {
            CHECK_THROWS_AS(Loader(mock(rows), options), Error);
            continue;
          }
          Loader loader(mock(rows), options);
          std::int64_t batches = 0;
          while (!loader.next_group(1).empty()) ++batches;
          CHECK(batches == loader.batches_per_epoch());
        }
}

TEST_CASE("loader: a rank without rows gets an empty batch") {
  Loader loader(mock(5), {.batch_size = 1, .dp_rank = 3, .dp_size = 4});
  CHECK(loader.next().samples == 1);
  const Batch empty = loader.next();
  CHECK(empty.samples == 0);
  CHECK(empty.positions == 0);
  const TokenBatch tokens = without_padding(empty);
  CHECK(tokens.ids.numel() == 0);
  CHECK(tokens.labels.numel() == 0);
  CHECK(tokens.sequences.count() == 0);
  CHECK(loader.epoch_done());
}

TEST_CASE("loader: what is refused") {
  CHECK_THROWS_AS(Loader(mock(5), {.batch_size = 0}), Error);
  CHECK_THROWS_WITH_AS(Loader(mock(5), {.batch_size = 6, .drop_last = true}),
                       "data loader: 5 rows give no batch of 6 on each of 1 data-parallel ranks; want 6 rows "
                       "or more",
                       Error);
  Loader loader(mock(5), {.shuffle = true, .seed = 9});
  LoaderState state = loader.state();
  state.rows = 6;
  CHECK_THROWS_AS(loader.restore(state), Error);
  state = loader.state();
  state.seed = 8;
  CHECK_THROWS_AS(loader.restore(state), Error);
  CHECK_THROWS_AS(Loader(mock(5), {.shuffle = false, .seed = 0})
                      .restore(Loader(mock(5), {.shuffle = true, .seed = 0}).state()),
                  Error);
  state = loader.state();
  state.next_index = 6;
  CHECK_THROWS_AS(loader.restore(state), Error);
  for (const char* text : {"1", "{}", R"({"epoch":0,"next_index":0,"rows":5})",
                           R"({"epoch":-1,"next_index":0,"rows":5,"seed":9})",
                           R"({"epoch":0,"next_index":0.5,"rows":5,"seed":9})"}) {
    CAPTURE(text);
    const Json json = Json::parse(text);
    CHECK_THROWS_AS(loader_state_from_json(JsonView(json, "f")), Error);
  }
}

TEST_CASE("loader: rows that are made ahead of time are those of the step") {
  for (const bool shuffle : {false, true}) {
    const LoaderOptions options{.batch_size = 2, .shuffle = shuffle, .dp_rank = 1, .dp_size = 2};
    const auto rows = std::make_shared<OnDemand>(31);
    Loader ahead(rows, options), plain(mock(31), options);
    const auto check_group = [&](std::int64_t count) {
      const auto got = ahead.next_group(count), want = plain.next_group(count);
      REQUIRE(got.size() == want.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].ids == want[i].ids);
        CHECK(got[i].row_numbers == want[i].row_numbers);
      }
      CHECK(ahead.state() == plain.state());
    };
    check_group(2);
    check_group(2);
    check_group(1);  // another size than was expected
    const LoaderState saved = plain.state();
    check_group(3);
    for (Loader* loader : {&ahead, &plain}) loader->restore(saved);
    check_group(2);
    for (Loader* loader : {&ahead, &plain}) loader->start_epoch(2);
    while (!plain.epoch_done()) check_group(2);
    CHECK(ahead.epoch_done());
    CHECK(rows->others > 20);
  }
}

TEST_CASE("loader: an error of a row that is made ahead of time comes with its step") {
  Loader loader(std::make_shared<OnDemand>(9, 5), {.batch_size = 2});
  CHECK(loader.next().samples == 2);
  CHECK(loader.next().samples == 2);
  CHECK_THROWS_WITH_AS(loader.next(), "row 5 is bad", Error);
  CHECK_THROWS_WITH_AS(loader.next(), "row 5 is bad", Error);
  {
    Loader stopped(std::make_shared<OnDemand>(9, 5), {.batch_size = 4});
    stopped.next();  // a run may end here
  }
}
