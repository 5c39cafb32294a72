#include "train/generate/generate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

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

// For each token, the share of the uniform numbers in [0, 1) that draw the token, measured on a fine grid.
std::map<std::int64_t, double> shares(const std::vector<float>& logits, const GenerateOptions& o) {
  std::map<std::int64_t, double> all;
  const int grid = 4000;
  for (int i = 0; i < grid; ++i) all[sample_token(logits, o, (i + 0.5) / grid)] += 1.0 / grid;
  return all;
}

// Greedy decoding without a state: each token comes from a forward pass over the whole text so far.
Ids greedy_by_prefill(NemotronH& model, Ids text, std::int64_t count) {
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

NemotronH& model() {
  static NemotronH m(tiny_config("ME*-M"), DType::f32, Device::cpu);
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

TEST_CASE("sample_token: greedy takes the largest, the lowest id on a tie, whatever the draw") {
  const std::vector<float> logits{1, 3, 2, 3, -1};
  for (const double u : {0.001, 0.5, 0.999}) CHECK(sample_token(logits, sampled(0), u) == 1);
  CHECK(sample_token(std::vector<float>{7}, sampled(0), 0.5) == 0);
  CHECK(sample_token(std::vector<float>{-5, -4, -6}, sampled(1e-30), 0.99) == 1);
}

TEST_CASE("sample_token: shares are the softmax at the temperature") {
  const std::vector<float> logits{0.3F, -1.2F, 2.0F, 1.9F, 0.0F};
  for (const double temperature : {0.5, 1.0, 3.0}) {
    double total = 0;
    for (const float l : logits) total += std::exp(static_cast<double>(l) / temperature);
    const auto got = shares(logits, sampled(temperature));
    for (std::size_t v = 0; v < logits.size(); ++v)
      CHECK(got.at(static_cast<std::int64_t>(v)) ==
            doctest::Approx(std::exp(static_cast<double>(logits[v]) / temperature) / total)
                .epsilon(0.001)
                .scale(1));
  }
  // Large logits do not overflow.
  CHECK(shares({1e30F, 1e30F, -1e30F}, sampled(1)).at(1) == doctest::Approx(0.5).epsilon(0.001));
}

TEST_CASE("sample_token: top_k keeps the k most likely, the lower id on a tie") {
  const std::vector<float> logits{1, 2, 2, 2, 0};
  const auto got = shares(logits, sampled(1, 2));
  CHECK(got.size() == 2);
  CHECK(got.at(1) == doctest::Approx(0.5));
  CHECK(got.at(2) == doctest::Approx(0.5));
  CHECK(shares(logits, sampled(1, 1)) ==
        std::map<std::int64_t, double>{{1, shares(logits, sampled(1, 1)).at(1)}});
  CHECK(shares(logits, sampled(1, 5)) == shares(logits, sampled(1)));
  CHECK(shares(logits, sampled(1, 99)) == shares(logits, sampled(1)));
}

TEST_CASE("sample_token: top_p keeps the fewest tokens that reach p, at least one") {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const auto l = [](double p) { return static_cast<float>(std::log(p)); };
  const std::vector<float> logits{l(0.125), l(0.5), l(0.125), l(0.25)};
  CHECK(shares(logits, sampled(1, 0, 1e-9)).size() == 1);
  CHECK(shares(logits, sampled(1, 0, 0.49)).size() == 1);
  const auto two = shares(logits, sampled(1, 0, 0.6));
  REQUIRE(two.size() == 2);
  CHECK(two.at(1) == doctest::Approx(2.0 / 3).epsilon(0.001));
  CHECK(two.at(3) == doctest::Approx(1.0 / 3).epsilon(0.001));
  const auto three = shares(logits, sampled(1, 0, 0.8));
  CHECK(three.size() == 3);
  CHECK(three.contains(0));
  CHECK(shares(logits, sampled(1, 0, 1)).size() == 4);
  // With top_k as well, p is a share of the probability that top_k leaves.
  CHECK(shares(logits, sampled(1, 2, 0.66)).size() == 1);
}

TEST_CASE("sample_token: the ends of the ranges") {
  const std::vector<float> logits{1, 3, 3, -1000, 2};
  const double infinity = std::numeric_limits<double>::infinity();
  const double smallest = std::numeric_limits<double>::denorm_min();
  for (const double draw : {1e-300, 0.4, 0.6, 1 - 1e-16}) {
    const std::int64_t likely = draw < 0.5 ? 1 : 2;
    CHECK(sample_token(logits, sampled(smallest), draw) == likely);
    CHECK(sample_token(logits, sampled(1, 0, smallest), draw) == 1);
    CHECK(sample_token(logits, sampled(1, 1), draw) == 1);
    CHECK(sample_token(logits, sampled(1, std::numeric_limits<std::int64_t>::max()), draw) ==
          sample_token(logits, sampled(1), draw));
    CHECK(sample_token(std::vector<float>{7}, sampled(2, 3, 0.5), draw) == 0);
  }
  for (int v = 0; v < 5; ++v)  // most likely first
    CHECK(sample_token(logits, sampled(infinity), 0.1 + 0.2 * v) ==
          std::vector<int>{1, 2, 4, 0, 3}[static_cast<std::size_t>(v)]);
  CHECK(sample_token(std::vector<float>{-3e38f, 3e38f}, sampled(1e-3), 0.5) == 1);
}

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
  NemotronH flat(tiny_config("-"), DType::f32, Device::cpu);
  randomise(flat, 72);
  flat.parameters().get("lm_head.weight").value.zero();  // all tokens are equally likely
  GenerateOptions o = at_most(6);
  o.temperature = 1;
  o.seed = 9;
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
  NemotronH flat(tiny_config("-"), DType::f32, Device::cpu);
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
