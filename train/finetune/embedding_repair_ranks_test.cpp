#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "model/test_models.h"
#include "parallel/parallel_model/parallel_model.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"
#include "train/finetune/embedding_repair.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Damages row 2 (zeros), 5 (one number that is not finite) and, on request, others.
void damage(const Parameter& p, const std::vector<std::int64_t>& more = {}) {
  const std::int64_t width = p.shard.global_shape()[1];
  const Tensor own = p.own.reshape({-1});
  p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = (global + i) / width, column = (global + i) % width;
      if (row == 2 || std::ranges::count(more, row)) own.narrow(0, local + i, 1).fill(0);
      if (row == 5 && column == 3) own.narrow(0, local + i, 1).fill(std::numeric_limits<double>::infinity());
    }
  });
}

std::vector<double> row_of(const Tensor& t, std::int64_t row) { return t.narrow(0, row, 1).to_vector(); }

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

/// What the rule makes of a whole model.
std::unique_ptr<Stack> repaired_on_one_rank(const ModelConfig& config, DType dtype) {
  auto model = std::make_unique<Stack>(config, dtype, Device::cpu);
  randomise(*model, 3);
  damage(model->parameters().get("backbone.embeddings.weight"));
  CHECK(repair_embeddings(*model, {.min_norm = 1e-4, .max_rows = 2}, nullptr) == 2);
  return model;
}

}  // namespace

TEST_CASE("embedding repair: damaged rows are those of lm_head with the norm of the others") {
  const ModelConfig config = tiny_config("M-");
  Stack before(config, DType::f32, Device::cpu);
  randomise(before, 3);
  const auto after = repaired_on_one_rank(config, DType::f32);
  const Tensor old = before.parameters().get("backbone.embeddings.weight").value,
               now = after->parameters().find("backbone.embeddings.weight")->value,
               head = before.parameters().get("lm_head.weight").value;
  double squares = 0;
  for (std::int64_t row = 0; row < config.vocab_size; ++row)
    if (row != 2 && row != 5) {
      CHECK(row_of(now, row) == row_of(old, row));
      squares += std::pow(norm(row_of(old, row)), 2);
    }
  const double healthy = std::sqrt(squares / static_cast<double>(config.vocab_size - 2));
  for (const std::int64_t row : {2, 5}) {
    const std::vector<double> got = row_of(now, row), want = row_of(head, row);
    for (std::size_t i = 0; i < want.size(); ++i)
      CHECK(got[i] == doctest::Approx(want[i] * healthy / norm(want)).epsilon(1e-6));
  }
}

TEST_CASE("embedding repair: the same on every rank, however the model is divided") {
  const ModelConfig config = tiny_config("M-");
  const int ranks = test_world().size();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool tensor : {false, true}) {
      if (tensor && ranks != 2) continue;
      CAPTURE(dtype);
      CAPTURE(tensor);
      const auto want = repaired_on_one_rank(config, dtype);
      ParallelPlan plan;
      (tensor ? plan.grid.tp : plan.grid.dp_shard) = ranks;
      const ProcessGroups groups(test_world(), make_grid(plan.grid), used_groups(plan, config));
      Stack model(config, dtype, Device::meta,
                  part_of(plan, config, place_of(plan.grid, test_world().rank())));
      ParallelModel parallel(model, plan, groups, Device::cpu);
      Stack whole(config, dtype, Device::cpu);
      randomise(whole, 3);
      for (Parameter& p : model.parameters().all()) {
        const std::vector<double> values = whole.parameters().get(p.name).value.to_vector();
        std::vector<double> own(static_cast<std::size_t>(p.own.numel()));
        p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
          std::copy_n(values.begin() + global, count, own.begin() + local);
        });
        p.own.reshape({-1}).copy_from(Tensor::from(own, {p.own.numel()}));
      }
      const Parameter& embeddings = model.parameters().get("backbone.embeddings.weight");
      damage(embeddings);
      CHECK(repair_embeddings(model, {.min_norm = 1e-4, .max_rows = 2}, &test_world().communicator()) == 2);
      const std::vector<double> all =
                                    want->parameters().find("backbone.embeddings.weight")->value.to_vector(),
                                got = embeddings.own.to_vector();
      embeddings.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          const double w = all[static_cast<std::size_t>(global + i)];
          CHECK(std::abs(got[static_cast<std::size_t>(local + i)] - w) <=
                std::abs(w) * (dtype == DType::bf16 ? 0x1p-7 : 1e-6));
        }
      });
    }
}

TEST_CASE("embedding repair: what cannot be repaired is refused") {
  if (test_world().size() > 1) return;  // said by rank alone
  const ModelConfig config = tiny_config("M-");
  const auto fault = [&](const std::vector<std::int64_t>& more, bool head, std::int64_t most) {
    Stack model(config, DType::f32, Device::cpu);
    randomise(model, 3);
    damage(model.parameters().get("backbone.embeddings.weight"), more);
    if (head) model.parameters().get("lm_head.weight").value.narrow(0, 2, 1).zero();
    return message_of([&] { repair_embeddings(model, {.min_norm = 1e-4, .max_rows = most}, nullptr); });
  };
  CHECK(fault({7}, false, 2) ==
        "embedding_row_repair: 3 rows of the embeddings are damaged, the first for token 2; want at most "
        "max_rows (2)");
  CHECK(fault({}, true, 2) ==
        "embedding_row_repair: the rows of token 2 are damaged in the embeddings and in lm_head");
  Stack whole(config, DType::f32, Device::cpu);
  randomise(whole, 3);
  CHECK(repair_embeddings(whole, {}, nullptr) == 0);
}

TEST_CASE("embedding repair: refused where the head has the weight of the embeddings") {
  ModelConfig config = tiny_config("M-");
  config.tie_word_embeddings = true;
  Stack model(config, DType::f32, Device::cpu);
  CHECK(message_of([&] { repair_embeddings(model, {.min_norm = 1e-4, .max_rows = 2}, nullptr); }) ==
        "embedding_row_repair: the head of this model has the weight of the embeddings, so there are no "
        "other rows to repair them by");
}
