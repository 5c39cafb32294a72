#include "data/peft/merge.h"

#include <memory>
#include <string>

#include "data/peft/peft_names.h"
#include "ops/matmul/matmul.h"

namespace nemocube {
namespace {

/// A and B of the module that was asked for last: a stack serves many experts one after another.
class Factors {
 public:
  explicit Factors(const PeftDirectory& adapter) : adapter_(adapter) {}
  void load(const std::string& module, DType dtype) {
    if (module == module_ && a.dtype() == dtype) return;
    module_ = module;
    a = adapter_.tensor(factor_name(module, 'A')).to(dtype);
    b = adapter_.tensor(factor_name(module, 'B')).to(dtype);
  }
  Tensor a, b;

 private:
  const PeftDirectory& adapter_;
  std::string module_;
};

void add_product(const Tensor& weight, const Tensor& a, const Tensor& b, double scale) {
  const Tensor product = Tensor::empty(weight.shape(), weight.dtype(), Device::cpu);  // of a file
  matmul({product, Into::set}, b, false, a, false);
  const auto add = [&]<class T>(T* w, const T* p) {
    for (std::int64_t i = 0; i < weight.numel(); ++i) w[i] += static_cast<T>(scale) * p[i];
  };
  if (weight.dtype() == DType::f64)
    add(weight.data<double>(), product.data<double>());
  else
    add(weight.data<float>(), product.data<float>());
}

}  // namespace

WeightChange merge_of(const PeftDirectory& adapter) {
  const auto factors = std::make_shared<Factors>(adapter);
  return {.changes =
              [&adapter](std::string_view name) { return adapter.find(module_of_weight(name)) != nullptr; },
          .apply =
              [&adapter, factors](const std::string& name, const TensorPart& part, const Tensor& values) {
                const std::string module(module_of_weight(name));
                const double scale = adapter.find(module)->scale();
                factors->load(module, values.dtype());
                if (part.expert >= 0) {
                  Tensor b = factors->b.select(part.expert);
                  if (const std::int64_t rows = b.dim(0) / 2; part.half >= 0)
                    b = b.narrow(0, part.half * rows, rows);
                  return add_product(values, factors->a.select(part.expert), b, scale);
                }
                if (values.ndim() == 2) return add_product(values, factors->a, factors->b, scale);
                for (std::int64_t e = 0; e < values.dim(0); ++e)
                  add_product(values.select(e), factors->a.select(e), factors->b.select(e), scale);
              }};
}

}  // namespace nemocube
