#include "train/generate/generate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Ids = std::vector<std::int64_t>;

GenerateOptions sampled(double temperature, std::int64_t top_k = 0, double top_p = 1) {
  GenerateOptions o;
  o.temperature = temperature;
  o.top_k = top_k;
  o.top_p = top_p;
  return o;
}

// Greedy decoding without a state: each token comes from a forward pass over the whole text so far.
Ids greedy_by_prefill(Stack& model, Ids text, std::int64_t count) {
  Ids made;
  for (std::int64_t n = 0; n < count; ++n) {
    const auto length = static_cast<std::int64_t>(text.size());
    Context ctx;
    const Tensor hidden =
        model.hidden(ctx, Tensor::from(text, {length}), Sequences::uniform(1, length)).value();
    const auto scores = model.logits(hidden.narrow(0, length - 1, 1)).to_vector();
    made.push_back(std::max_element(scores.begin(), scores.end()) - scores.begin());
    text.push_back(made.back());
  }
  return made;
}

Stack& model() {
  static Stack m(tiny_config("ME*-M"), DType::f32, Device::cpu);
  static const bool ready = (randomise(m, 71), true);
  (void)ready;
  return m;
}

ParallelModel& parallel() {
  static ParallelModel p(model());
  return p;
}

GenerateOptions at_most(std::int64_t count) {
  GenerateOptions o;
  o.max_new_tokens = count;
  return o;
}

const std::vector<Ids> prompts{{3}, {1, 5, 2, 9, 11, 4, 4, 20, 7}, {22, 0, 13}};

}  // namespace

TEST_CASE("generate: greedy decoding from states is greedy decoding of the whole text") {
  for (const Ids& prompt : prompts)
    CHECK(generate(parallel(), {prompt}, at_most(12))[0] == greedy_by_prefill(model(), prompt, 12));
}

TEST_CASE("generate: prompts of a batch get what each gets alone, also when some end early") {
  const auto together = generate(parallel(), prompts, at_most(12));
  for (std::size_t i = 0; i < prompts.size(); ++i)
    CHECK(together[i] == generate(parallel(), {prompts[i]}, at_most(12))[0]);
  const OnToken stop = [](std::size_t prompt, std::int64_t) { return prompt == 1; };
  const auto stopped = generate(parallel(), prompts, at_most(12), stop);
  CHECK(stopped[0] == together[0]);
  CHECK(stopped[1] == Ids{together[1][0]});
  CHECK(stopped[2] == together[2]);
}

TEST_CASE("generate: stop ids end a sequence and are not part of it") {
  const auto free = generate(parallel(), prompts, at_most(12));
  GenerateOptions o = at_most(12);
  o.stop_ids = {free[0][4], 999};
  std::vector<Ids> seen(prompts.size());
  const auto got = generate(parallel(), prompts, o, [&](std::size_t p, std::int64_t id) {
    seen[p].push_back(id);
    return false;
  });
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto end = std::find(free[i].begin(), free[i].end(), free[0][4]);
    CHECK(got[i] == Ids(free[i].begin(), end));
    CHECK(seen[i] == got[i]);
  }
  CHECK(got[0].size() <= 4);
}

TEST_CASE("generate: max_new_tokens") {
  CHECK(generate(parallel(), prompts, at_most(0)) == std::vector<Ids>(3));
  for (const Ids& ids : generate(parallel(), prompts, at_most(1))) CHECK(ids.size() == 1);
  CHECK(generate(parallel(), {}, at_most(5)).empty());
}

TEST_CASE("generate: sampling depends on seed, prompt number and token number alone") {
  GenerateOptions o = at_most(10);
  o.temperature = 1.5;
  o.seed = 5;
  const auto first = generate(parallel(), prompts, o);
  CHECK(generate(parallel(), prompts, o) == first);
  CHECK(generate(parallel(), {prompts[0]}, o)[0] == first[0]);
  // The second of two equal prompts gets other random numbers.
  const auto twice = generate(parallel(), {prompts[0], prompts[0]}, o);
  CHECK(twice[0] == first[0]);
  CHECK(twice[1] != first[0]);
  o.seed = 6;
  CHECK(generate(parallel(), prompts, o) != first);
}

TEST_CASE("generate: draw n of prompt i comes from the stream of i, also beside a prompt that has ended") {
  Stack flat(tiny_config("-"), DType::f32, Device::cpu);
  randomise(flat, 72);
  flat.parameters().get("lm_head.weight").value.zero();  // all tokens are equally likely
  GenerateOptions o = at_most(6);
  o.temperature = 1;
  o.seed = 9;
  ParallelModel alone(flat);
  const OnToken end_first = [](std::size_t prompt, std::int64_t) { return prompt == 0; };
  const auto got = generate(alone, prompts, o, end_first);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const RandomStream stream(9, cat("generate/", i));
    Ids want;
    for (std::uint64_t n = 0; n < (i == 0 ? 1 : 6); ++n)
      want.push_back(static_cast<std::int64_t>(stream.uniform(n) * 23));
    CHECK(got[i] == want);
  }
}

TEST_CASE("generate: many prompts go in groups, with the streams of their numbers") {
  Stack flat(tiny_config("-"), DType::f32, Device::cpu);
  randomise(flat, 72);
  flat.parameters().get("lm_head.weight").value.zero();
  ParallelModel alone(flat);
  GenerateOptions o = at_most(3);
  o.temperature = 1;
  std::vector<std::size_t> order;
  const auto got = generate(alone, std::vector<Ids>(70, Ids{3}), o, [&](std::size_t prompt, std::int64_t) {
    order.push_back(prompt);
    return false;
  });
  REQUIRE(got.size() == 70);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const RandomStream stream(0, cat("generate/", i));
    Ids want;
    for (std::uint64_t n = 0; n < 3; ++n) want.push_back(static_cast<std::int64_t>(stream.uniform(n) * 23));
    CHECK(got[i] == want);
  }
  REQUIRE(order.size() == 210);
  for (std::size_t k = 0; k < order.size(); ++k) CHECK(order[k] / 32 == k / 96);
}

TEST_CASE("generate: errors") {
  GenerateOptions o = at_most(2);
  CHECK_THROWS_WITH_AS(generate(parallel(), {{1}, {}}, o), doctest::Contains("prompt 1"), Error);
  CHECK_THROWS_WITH_AS(generate(parallel(), {{23}}, o), doctest::Contains("23"), Error);
  CHECK_THROWS_WITH_AS(generate(parallel(), {{-1}}, o), doctest::Contains("-1"), Error);
  for (const double bad : {-0.1, std::nan("")})
    CHECK_THROWS_WITH_AS(generate(parallel(), prompts, sampled(bad)), doctest::Contains("temperature"),
                         Error);
  for (const double bad : {0.0, 1.1, -1.0, std::nan("")})
    CHECK_THROWS_WITH_AS(generate(parallel(), prompts, sampled(1, 0, bad)), doctest::Contains("top_p"),
                         Error);
  CHECK_THROWS_WITH_AS(generate(parallel(), prompts, sampled(1, -1)), doctest::Contains("top_k"), Error);
  CHECK_THROWS_WITH_AS(generate(parallel(), prompts, at_most(-1)), doctest::Contains("max_new_tokens"),
                       Error);
}
