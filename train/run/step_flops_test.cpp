#include "train/run/step_flops.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "model/flops.h"
#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("step FLOPs: sequences at their own lengths, the head for labelled tokens") {
  const ModelConfig config = tiny_config("ME*-");
  const auto batch = [&](const std::vector<std::int64_t>& lengths, std::int64_t labelled) {
    const Sequences sequences = Sequences::of_lengths(lengths);
    std::vector<std::int64_t> labels(static_cast<std::size_t>(sequences.tokens()), -100);
    std::fill_n(labels.begin(), labelled, 1);
    return TokenBatch(random_ids(config, sequences.tokens(), 1), Tensor::from(labels, {sequences.tokens()}),
                      sequences);
  };
  const auto body = [&](double length) {
    const ForwardFlops f = forward_flops_per_token(config, length);
    return length * (f.total() - f.head);
  };
  const double head = forward_flops_per_token(config, 1).head;
  const std::vector<TokenBatch> step{batch({3, 5}, 2), batch({7}, 7)};
  CHECK(step_flops(config, step) == doctest::Approx(3 * (body(3) + body(5) + body(7) + 9 * head)));
  // Lengths that come again, in one batch and in another.
  const std::vector<TokenBatch> again{batch({3, 5, 3}, 2), batch({5}, 4)};
  CHECK(step_flops(config, again) == doctest::Approx(3 * (2 * body(3) + 2 * body(5) + 6 * head)));
  // Three sequences need fewer operations than one of as many tokens: each token attends to fewer others.
  const std::vector<TokenBatch> three{batch({3, 5, 7}, 0)}, one{batch({15}, 0)};
  CHECK(step_flops(config, three) < step_flops(config, one));
}
