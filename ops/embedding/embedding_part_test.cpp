#include <doctest/doctest.h>

#include "ops/embedding/embedding.h"
#include "ops/test_ranks.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

// Embeddings that are cut by rows of the vocabulary, against the whole.

namespace {

using Cuts = std::vector<std::int64_t>;

struct Outcome {
  Tensor y, dweight;
};

Outcome look_up(const Tensor& ids, const Tensor& weight, const Tensor& dy, bool leaf,
                const VocabularyPart& part = {}) {
  const Var w(weight, std::make_shared<GradNode>(weight.shape(), weight.dtype(), Device::cpu, leaf));
  Tape tape;
  Context ctx{.tape = &tape};
  const Var y = embedding(ctx, ids, w, part);
  tape.backward(y, dy);
  return {y.value(), leaf ? w.grad() : w.node()->take()};
}

}  // namespace

TEST_CASE("embedding, vocabulary part: own rows, zeros for the tokens of others, gradients of own rows") {
  const std::int64_t vocabulary = 13, cols = 5;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const std::int64_t tokens : {0, 1, 131})
      // The last of these cuts end with padding; one part is empty, another is padding alone.
      for (const Cuts& cuts : {Cuts{0, 13}, Cuts{0, 6, 13}, Cuts{0, 5, 5, 6, 13}, Cuts{0, 7, 14, 21}})
        for (const bool leaf : {true, false}) {
          CAPTURE(dtype);
          CAPTURE(tokens);
          CAPTURE(cuts.size());
          const Tensor ids = Tensor::empty({tokens}, DType::i64, Device::cpu);
          for (std::int64_t t = 0; t < tokens; ++t) ids.data<std::int64_t>()[t] = (t * t + 3) % vocabulary;
          const Tensor padded = random_tensor({cuts.back(), cols}, dtype, 1);
          const Tensor dy = random_tensor({tokens, cols}, dtype, 2);
          const Outcome want = look_up(ids, padded.narrow(0, 0, vocabulary), dy, leaf);
          on_parts(cuts, vocabulary, [&](std::size_t i, const VocabularyPart& part, ThreadReduction& ranks) {
            const std::int64_t begin = cuts[i], length = cuts[i + 1] - begin;
            const Outcome got = look_up(ids, padded.narrow(0, begin, length), dy, leaf, part);
            for (std::int64_t t = 0; t < tokens; ++t) {
              const std::int64_t id = ids.data<std::int64_t>()[t];
              const bool own = id >= begin && id < begin + length;
              CHECK_BITS(got.y.select(t), own ? want.y.select(t) : Tensor::zeros({cols}, dtype, Device::cpu));
            }
            const std::int64_t real = part.own_tokens(length);
            CHECK(got.dweight.shape() == Shape{length, cols});
            CHECK_BITS(got.dweight.narrow(0, 0, real), want.dweight.narrow(0, real > 0 ? begin : 0, real));
            for (const double g : got.dweight.narrow(0, real, length - real).to_vector()) CHECK(g == 0);
            CHECK(ranks.messages.empty());
          });
        }
}

TEST_CASE("embedding, vocabulary part: an id must be a token of the whole vocabulary, not padding") {
  const auto text = [](std::int64_t begin, std::int64_t id) {
    return message_of([&] {
      on_parts({begin, begin + 3}, 5, [&](std::size_t, const VocabularyPart& part, const ThreadReduction&) {
        Context ctx;
        embedding(ctx, Tensor::from<std::int64_t>({0, id}, {2}),
                  Tensor::zeros({3, 2}, DType::f32, Device::cpu), part);
      });
    });
  };
  for (const std::int64_t begin : {0, 3}) {
    CHECK(text(begin, 4) == "no error");
    CHECK(text(begin, 5) == "embedding: id 5 at position 1 is outside the vocabulary [0, 5)");
    CHECK(text(begin, -1) == "embedding: id -1 at position 1 is outside the vocabulary [0, 5)");
  }
}
