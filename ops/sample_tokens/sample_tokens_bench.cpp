#include <memory>

#include "ops/bench_support.h"
#include "ops/sample_tokens/sample_tokens.h"

namespace nemocube::sample_tokens_bench {
namespace {

struct Work {
  Tensor logits, uniform, ids;
};

const RegisterBench registration("sample_tokens", [](const BenchOptions& o) {
  const std::int64_t rows = 8, vocabulary = (o.small || o.emulated) && !o.nano ? 1000 : 131072;
  const auto w = std::make_shared<Work>();
  BenchOptions f32 = o;
  f32.dtype = DType::f32;
  w->logits = bench::normal(f32, {rows, vocabulary}, "logits");
  w->uniform = Tensor::zeros({rows}, DType::f64, o.device);
  w->uniform.fill(0.5);
  std::vector<BenchCase> list;
  for (const auto& [name, options] :
       {std::pair{"greedy", SamplingOptions{}}, std::pair{"top-k top-p", SamplingOptions{0.8, 50, 0.9}}})
    list.push_back(
        {name,
         {{"rows", rows}, {"vocabulary", vocabulary}},
         bench::bytes_of(w->logits) + bench::bytes_of(w->uniform) + 8.0 * rows,
         0,
         [w, options = options] { w->ids = sample_tokens(w->logits, options, w->uniform); },
         [w, options = options] {
           return w->ids.to_vector() ==
                  sample_tokens(w->logits.to(Device::cpu), options, w->uniform.to(Device::cpu)).to_vector();
         }});
  return list;
});

}  // namespace
}  // namespace nemocube::sample_tokens_bench
