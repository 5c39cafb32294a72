#include "train/evaluate/log_probabilities.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "data/json/test_dir.h"
#include "model/test_models.h"
#include "tests/support/message_of.h"
#include "train/evaluate/evaluate.h"
#include "train/evaluate/test_rows.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

std::vector<LabelLogProbability> scored(ParallelModel& model, const std::shared_ptr<const Dataset>& data,
                                        std::int64_t batch, DataParallel::Held hold) {
  std::vector<LabelLogProbability> all;
  std::int64_t next = 0;
  validate(
      model, data, batch, nullptr, {}, {}, {},
      [&](const ScoredRows& rows) {
        CHECK(rows.begin == next);
        next = rows.end;
        all.insert(all.end(), rows.labels.begin(), rows.labels.end());
      },
      hold);
  CHECK(next == data->size());
  return all;
}

}  // namespace

TEST_CASE("log-probabilities: a data set's labels, by the softmax of whole logits") {
  Stack model(tiny_config(), DType::f32, Device::cpu);
  randomise(model, 3);
  ParallelModel alone(model);
  const auto data = std::make_shared<ScoredRowsData>();
  const std::vector<LabelLogProbability> want = by_whole_logits(model, *data);
  REQUIRE(want.size() > 10);
  Stack guarded(tiny_config(), DType::f32, Device::guard);
  copy_weights(guarded, model);
  ParallelModel there(guarded);
  for (const std::int64_t batch : {1, 2, 3, 50})
    for (ParallelModel* on : {&alone, &there}) {
      CAPTURE(batch);
      check_scores(scored(*on, data, batch, DataParallel::Held::everything), want, 1e-5);
    }
  const ValidationResult plain = validate(alone, data, 2, nullptr),
                         with = validate(alone, data, 2, nullptr, {}, {}, {}, [](const ScoredRows&) {});
  CHECK(plain.loss == with.loss);
}

TEST_CASE("log-probabilities: a line for each row, also for rows without labels") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const ScoredRows rows{4, 8, {{5, 0, 17, -0.5}, {5, 3, 2, -1.25}, {7, 1, 0, -inf}, {7, 2, 1, 0}}};
  CHECK(log_probability_lines(rows) ==
        "{\"row\":4,\"positions\":[],\"tokens\":[],\"logprobs\":[]}\n"
        "{\"row\":5,\"positions\":[0,3],\"tokens\":[17,2],\"logprobs\":[-0.5,-1.25]}\n"
        "{\"row\":6,\"positions\":[],\"tokens\":[],\"logprobs\":[]}\n"
        "{\"row\":7,\"positions\":[1,2],\"tokens\":[0,1],\"logprobs\":[null,0]}\n");
  CHECK(log_probability_lines({0, 1, {{0, 0, 1, std::log(0.3)}}}) ==
        "{\"row\":0,\"positions\":[0],\"tokens\":[1],\"logprobs\":[-1.2039728]}\n");
  CHECK_THROWS_AS(log_probability_lines({0, 1, {{1, 0, 1, -1}}}), std::logic_error);
}

TEST_CASE("log-probabilities: the file appears whole or not at all") {
  const TestDir dir;
  const auto alone = self_communicator("all", 0);
  {
    LogProbabilityFile file(dir / "abandoned", *alone);
    file.write({0, 1, {}});
  }
  CHECK_FALSE(std::filesystem::exists(dir / "abandoned"));
  LogProbabilityFile file(dir / "file", *alone);
  file.write({0, 1, {}});
  file.write({1, 2, {{1, 0, 3, -2}}});
  file.finish();
  CHECK(slurp(dir / "file") ==
        "{\"row\":0,\"positions\":[],\"tokens\":[],\"logprobs\":[]}\n"
        "{\"row\":1,\"positions\":[0],\"tokens\":[3],\"logprobs\":[-2]}\n");
  CHECK(message_of([&] { LogProbabilityFile(dir / "missing" / "file", *alone); }).find("missing/file") !=
        std::string::npos);
}
