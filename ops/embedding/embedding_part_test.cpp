#include <doctest/doctest.h>

#include "ops/embedding/embedding.h"
#include "ops/test_ranks.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

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
  const Var w(weight, std::make_shared<GradNode>(weight.shape(), weight.dtype(), weight.device(), leaf));
  Tape tape;
  Context ctx{.tape = &tape};
  const Var y = embedding(ctx, ids, w, part);
  tape.backward(y, dy);
  return {y.value(), leaf ? w.grad() : w.node()->take()};
}

}  // namespace

TEST_CASE("embedding, vocabulary part: own rows, zeros for the tokens of others, gradients of own rows" *
          doctest::test_suite("cuda")) {
  const std::int64_t vocabulary = 13, cols = 5;
  for_dtypes(test_devices("embedding"), [&](Device device, DType dtype) {
    for (const std::int64_t tokens : {0, 1, 131})
      // One part is empty.
      for (const Cuts& cuts : {Cuts{0, 13}, Cuts{0, 6, 13}, Cuts{0, 5, 5, 6, 13}})
        for (const bool leaf : {true, false}) {
          CAPTURE(tokens);
          CAPTURE(cuts.size());
          const Tensor ids = Tensor::empty({tokens}, DType::i64, Device::cpu);
          for (std::int64_t t = 0; t < tokens; ++t) ids.data<std::int64_t>()[t] = (t * t + 3) % vocabulary;
          const Tensor weight = random_tensor({vocabulary, cols}, dtype, 1).to(device);
          const Tensor dy = random_tensor({tokens, cols}, dtype, 2).to(device);
          const Outcome want = look_up(ids.to(device), weight, dy, leaf);
          const Tensor want_y = want.y.to(Device::cpu);
          on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, ThreadReduction& ranks) {
            const std::int64_t begin = cuts[i], length = cuts[i + 1] - begin;
            const Outcome got = look_up(ids.to(device), weight.narrow(0, begin, length), dy, leaf, part);
            const Tensor own_y = want_y.clone();
            for (std::int64_t t = 0; t < tokens; ++t)
              if (const std::int64_t id = ids.data<std::int64_t>()[t]; id < begin || id >= begin + length)
                own_y.select(t).zero();
            CHECK_BITS(got.y, own_y);
            CHECK_BITS(got.dweight, want.dweight.narrow(0, begin, length));
            CHECK(ranks.messages.empty());
          });
        }
  });
}
