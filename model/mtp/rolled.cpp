#include "model/mtp/rolled.h"

#include <algorithm>

namespace nemocube {

Tensor rolled(const Tensor& tokens, const Sequences& sequences, std::int64_t k, std::int64_t fill) {
  expect(k >= 0, "tokens rolled by ", k);
  check_dtype("tokens to be rolled", tokens, DType::i64);
  check_shape("tokens to be rolled", tokens, {sequences.tokens()});
  const Tensor from = tokens.as_contiguous(), to = Tensor::empty(tokens.shape(), DType::i64, tokens.device());
  const auto* in = from.data<std::int64_t>();
  auto* out = to.data<std::int64_t>();
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    const std::int64_t begin = sequences.begin(i), end = sequences.end(i), middle = std::max(begin, end - k);
    std::copy(in + begin + (end - middle), in + end, out + begin);
    std::fill(out + middle, out + end, fill);
  }
  return to;
}

}  // namespace nemocube
