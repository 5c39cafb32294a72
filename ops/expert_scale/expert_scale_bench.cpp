#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/expert_scale/expert_scale_kernels.h"
#include "ops/segments.h"

namespace nemocube::expert_scale_bench {
namespace {

struct Work {
  Tensor weights, experts, scale, y, dy, partial;
};

bool verify_scale(const Work& w) {
  const auto from = w.weights.to_vector(), e = w.experts.to_vector(), s = w.scale.to_vector(),
             y = w.y.to_vector();
  for (std::size_t i = 0; i < y.size(); ++i)
    if (!bench::close(y[i], from[i] * s[static_cast<std::size_t>(e[i])], 0x1p-22)) return false;
  return true;
}

/// Checks the sums of the last segment.
bool verify_sums(const Work& w) {
  const std::int64_t first = (w.partial.rows() - 1) * segment_rows;
  const auto rows = [&](const Tensor& t) { return t.narrow(0, first, t.rows() - first).to_vector(); };
  const auto from = rows(w.weights), e = rows(w.experts), dy = rows(w.dy),
             got = w.partial.narrow(0, w.partial.rows() - 1, 1).to_vector();
  std::vector<double> want(got.size());
  for (std::size_t i = 0; i < e.size(); ++i) want[static_cast<std::size_t>(e[i])] += dy[i] * from[i];
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!bench::close(got[i], want[i], 1e-4)) return false;
  return true;
}

const RegisterBench registration("expert_scale", [](const BenchOptions& o) {
  // Gemma 4 26B-A4B.
  const std::int64_t tokens = o.small ? 65 : o.emulated ? 512 : 8192, k = 8, experts = 128;
  BenchOptions wide = o;
  wide.dtype = accumulate_dtype(o.dtype);
  std::vector<std::int32_t> chosen;
  for (std::int64_t i = 0; i < tokens * k; ++i)
    chosen.push_back(static_cast<std::int32_t>((i * 37 + i / k) % experts));
  const auto w = std::make_shared<Work>(
      Work{bench::normal(wide, {tokens, k}, "weights"), Tensor::from(chosen, {tokens, k}).to(o.device),
           bench::normal(o, {experts}, "scale"), Tensor::empty({tokens, k}, wide.dtype, o.device),
           bench::normal(wide, {tokens, k}, "dy"),
           Tensor::empty({segments_of(tokens), experts}, wide.dtype, o.device)});
  const BenchShape shape{{"tokens", tokens}, {"k", k}, {"experts", experts}};
  return std::vector<BenchCase>{
      {"scale", shape, bench::bytes_of(w->weights, w->experts, w->scale, w->y), 0,
       [w] { expert_scale_kernel(w->y, w->weights, w->experts, w->scale); },
       [w] { return verify_scale(*w); }},
      {"sums", shape, bench::bytes_of(w->weights, w->experts, w->dy, w->partial), 0,
       [w] { expert_scale_sums(w->partial, w->dy, w->weights, w->experts); },
       [w] { return verify_sums(*w); }},
  };
});

}  // namespace
}  // namespace nemocube::expert_scale_bench
