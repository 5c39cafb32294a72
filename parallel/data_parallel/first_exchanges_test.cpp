#include "parallel/data_parallel/first_exchanges.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Calls = std::vector<std::string>;

/// Notes its passes in `calls`, as an exchange would take place: "> point" forward, "< point" backward.
Transform noting(Calls& calls, const std::string& point) {
  return [&calls, point](Context& ctx, const Var& x, const Sequences&) {
    calls.push_back("> " + point);
    if (ctx.tape) ctx.tape->record("noting", [&calls, point] { calls.push_back("< " + point); });
    return x;
  };
}

/// What comes right before each "then".
Calls before_then(const Calls& calls) {
  Calls before;
  for (std::size_t i = 1; i < calls.size(); ++i)
    if (calls[i] == "then") before.push_back(calls[i - 1]);
  return before;
}

}  // namespace

TEST_CASE("first exchanges: what follows is called behind the first one of each pass through a block") {
  Stack model(tiny_config("ME*-"), DType::f64, Device::cpu);
  randomise(model, 71);
  const TestBatch batch = random_batch(model.config(), {9, 4}, 72);
  Calls calls;
  for (const auto& [name, point] : model.transform_points())
    *point.transform = noting(calls, ModelNames().text(name));
  std::optional<FirstExchanges> exchanges(std::in_place, model, true, [&] { calls.push_back("then"); });

  const std::string layer = "backbone.layers.";
  const Calls forward{"> " + layer + "0.mixer.in_proj.input", "> " + layer + "2.mixer.qkv.input",
                      "> " + layer + "3.mixer.up_proj.input"};
  const Calls backward{"< " + layer + "3.mixer.down_proj.output", "< " + layer + "2.mixer.o_proj.output",
                       "< " + layer + "1.mixer.experts.output", "< " + layer + "0.mixer.out_proj.output",
                       "< backbone.embeddings.output"};
  Calls both = forward;
  both.insert(both.end(), backward.begin(), backward.end());
  loss_and_gradients(model, batch);
  CHECK(before_then(calls) == both);
  calls.clear();
  loss_only(model, batch);
  CHECK(before_then(calls) == forward);

  // A replay passes through the block once more.
  calls.clear();
  model.activation_checkpointing = true;
  loss_and_gradients(model, batch);
  Calls replayed = forward;
  replayed.insert(replayed.end(), {forward[2], backward[0], forward[1], backward[1], backward[2], forward[0],
                                   backward[3], backward[4]});
  CHECK(before_then(calls) == replayed);

  calls.clear();
  exchanges.reset();
  loss_and_gradients(model, batch);
  CHECK(before_then(calls).empty());
  CHECK(std::ranges::find(calls, backward[0]) != calls.end());
}

TEST_CASE("first exchanges: passes through blocks without one are known") {
  Stack model(tiny_config("ME*"), DType::f32, Device::cpu);
  const auto blocks = [&](const FirstExchanges& exchanges) {
    std::string text;
    for (std::int64_t block = FirstExchanges::embeddings; block < 3; ++block)
      text += cat(exchanges.in_forward(block) ? "f" : "-", exchanges.in_backward(block) ? "b" : "-", " ");
    return text;
  };
  CHECK(blocks({model, false, [] {}}) == "-- -- -- -- ");
  CHECK(blocks({model, true, [] {}}) == "-- -- -b -- ");
  Calls calls;
  // None of these is the first.
  for (const char* point : {"0.mixer.out_proj.input", "1.mixer.shared_experts.up_proj.input",
                            "1.mixer.shared_experts.down_proj.output", "1.mixer.routed.output"})
    *model.transform_points().at(named(cat("backbone.layers.", point))).transform = noting(calls, point);
  CHECK(blocks({model, false, [] {}}) == "-- -- -- -- ");
  for (const char* point : {"backbone.layers.0.mixer.in_proj.input", "backbone.layers.2.mixer.o_proj.output",
                            "backbone.embeddings.output"})
    *model.transform_points().at(named(point)).transform = noting(calls, point);
  CHECK(blocks({model, false, [] {}}) == "-b f- -- -b ");
}

TEST_CASE("first exchanges: blocks on one norm have theirs together, in the first of them and in the last") {
  ModelConfig config = tiny_config("-ME*-");
  for (const std::int64_t block : {2, 3}) own_config(config, block).residual = Residual::shared_norm;
  Stack model(config, DType::f64, Device::cpu);
  randomise(model, 73);
  const TestBatch batch = random_batch(config, {9, 4}, 74);
  Calls calls;
  for (const auto& [name, point] : model.transform_points())
    if (point.role == PointRole::way_in || point.role == PointRole::way_out)
      *point.transform = noting(calls, ModelNames().text(name));
  const FirstExchanges exchanges(model, false, [&] { calls.push_back("then"); });
  std::string blocks;
  for (std::int64_t block = 0; block < 5; ++block)
    blocks += cat(exchanges.in_forward(block) ? "f" : "-", exchanges.in_backward(block) ? "b" : "-", " ");
  CHECK(blocks == "fb f- -- -b fb ");

  // A transform that blocks share is that of the point that was set last.
  const std::string layer = "backbone.layers.";
  loss_and_gradients(model, batch);
  CHECK(before_then(calls) ==
        Calls{"> " + layer + "0.mixer.up_proj.input", "> " + layer + "3.mixer.qkv.input",
              "> " + layer + "4.mixer.up_proj.input", "< " + layer + "4.mixer.down_proj.output",
              "< " + layer + "3.mixer.o_proj.output", "< " + layer + "0.mixer.down_proj.output",
              "< backbone.embeddings.output"});
  for (const char* once : {"3.mixer.qkv.input", "3.mixer.o_proj.output"})
    CHECK(std::ranges::count(calls, cat("> ", layer, once)) == 1);
}
