#include "ops/sample_tokens/sample_tokens.h"

#include <limits>

#include "ops/sample_tokens/sample_tokens_kernels.h"

namespace nemocube {

Tensor sample_tokens(const Tensor& logits, const SamplingOptions& o, const Tensor& uniform) {
  require(o.temperature >= 0, "sample_tokens: temperature must be >= 0, got ", o.temperature);
  require(o.top_p > 0 && o.top_p <= 1, "sample_tokens: top_p must lie in (0, 1], got ", o.top_p);
  require(o.top_k >= 0, "sample_tokens: top_k must be >= 0, got ", o.top_k);
  require(
      logits.ndim() == 2 && logits.cols() >= 1 && logits.cols() <= std::numeric_limits<std::int32_t>::max(),
      "sample_tokens: logits: want shape [rows, vocabulary], got ", logits.shape());
  check_dtype("sample_tokens: logits", logits, DType::f32);
  check_shape("sample_tokens: uniform", uniform, {logits.rows()});
  check_dtype("sample_tokens: uniform", uniform, DType::f64);
  const Tensor ids = Tensor::empty({logits.rows()}, DType::i64, logits.device());
  if (logits.rows() > 0) sample_tokens_kernel(ids, logits, o, uniform);
  return ids;
}

}  // namespace nemocube
