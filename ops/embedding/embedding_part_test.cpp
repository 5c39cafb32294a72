#include <doctest/doctest.h>

#include "ops/embedding/embedding.h"
#include "ops/test_ranks.h"
#include "tests/support/compare.h"

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
      // One part is empty.
      for (const Cuts& cuts : {Cuts{0, 13}, Cuts{0, 6, 13}, Cuts{0, 5, 5, 6, 13}})
        for (const bool leaf : {true, false}) {
          CAPTURE(dtype);
          CAPTURE(tokens);
          CAPTURE(cuts.size());
          const Tensor ids = Tensor::empty({tokens}, DType::i64, Device::cpu);
          for (std::int64_t t = 0; t < tokens; ++t) ids.data<std::int64_t>()[t] = (t * t + 3) % vocabulary;
          const Tensor weight = random_tensor({vocabulary, cols}, dtype, 1);
          const Tensor dy = random_tensor({tokens, cols}, dtype, 2);
          const Outcome want = look_up(ids, weight, dy, leaf);
          on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, ThreadReduction& ranks) {
            const std::int64_t begin = cuts[i], length = cuts[i + 1] - begin;
            const Outcome got = look_up(ids, weight.narrow(0, begin, length), dy, leaf, part);
            for (std::int64_t t = 0; t < tokens; ++t) {
              const std::int64_t id = ids.data<std::int64_t>()[t];
              const bool own = id >= begin && id < begin + length;
              CHECK_BITS(got.y.select(t), own ? want.y.select(t) : Tensor::zeros({cols}, dtype, Device::cpu));
            }
            CHECK_BITS(got.dweight, want.dweight.narrow(0, begin, length));
            CHECK(ranks.messages.empty());
          });
        }
}
