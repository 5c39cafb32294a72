#include "ops/lora/lora.h"

#include <doctest/doctest.h>

#include "data/safetensors/reader.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// The tensors of one part of tests/goldens/lora/peft.safetensors (tools/goldens/make_lora.py).
class Golden {
 public:
  Golden(const char* part, Device device, DType dtype) : part_(part), device_(device), dtype_(dtype) {}
  Tensor operator()(const char* name) const { return file_.tensor(part_ + name).to(dtype_).to(device_); }
  Tensor offsets() const { return file_.tensor("experts.offsets").to(device_); }
  double scale() const { return file_.tensor(part_ + "scale").item<double>(); }

 private:
  SafetensorsFile file_{source_dir() / "tests" / "goldens" / "lora" / "peft.safetensors"};
  std::string part_;
  Device device_;
  DType dtype_;
};

/// Numbers of size 1 to 30, of sums of at most 13 products: a few roundings of numbers up to 100.
Tol tolerance(DType dtype) {
  const double unit = dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : 0x1p-9;
  return {4 * unit, 400 * unit};
}

/// PEFT's B [out, r E], the expert last, as [E, out, r].
Tensor by_expert(const Tensor& b, std::int64_t experts) {
  const auto values = b.to_vector();
  const std::int64_t out = b.dim(0), rank = b.dim(1) / experts;
  std::vector<double> turned;
  for (std::int64_t e = 0; e < experts; ++e)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t k = 0; k < rank; ++k)
        turned.push_back(values[static_cast<std::size_t>((o * rank + k) * experts + e)]);
  return Tensor::from(turned, {experts, out, rank}).to(b.dtype()).to(b.device());
}

Var intermediate(const Tensor& t) {
  return {t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false)};
}

}  // namespace

TEST_CASE("lora: a linear layer against PEFT" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("lora"), [](Device device, DType dtype) {
    const Golden golden("linear.", device, dtype);
    const Var x = intermediate(golden("x")), a = Var::leaf(golden("A")), b = Var::leaf(golden("B"));
    Tape tape;
    Context ctx{.tape = &tape};
    const Var y = add_lora(ctx, linear(ctx, x, golden("weight"), golden("bias")), x, {a, b, golden.scale()});
    tape.backward(y, golden("dy"));
    CHECK_CLOSE(y.value(), golden("y"), tolerance(dtype));
    CHECK_CLOSE(x.node()->take(), golden("dx"), tolerance(dtype));
    CHECK_CLOSE(a.grad(), golden("dA"), tolerance(dtype));
    CHECK_CLOSE(b.grad(), golden("dB"), tolerance(dtype));
  });
}

TEST_CASE("lora: a stack of experts against PEFT" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("lora"), [](Device device, DType dtype) {
    const Golden golden("experts.", device, dtype);
    const Tensor offsets = golden.offsets();
    const std::int64_t experts = offsets.numel() - 1;
    const auto stacked = [&](const Tensor& t) { return t.reshape({experts, -1, t.cols()}); };
    const Var x = intermediate(golden("x")), a = Var::leaf(stacked(golden("A"))),
              b = Var::leaf(by_expert(golden("B"), experts));
    Tape tape;
    Context ctx{.tape = &tape};
    const Var y = add_grouped_lora(ctx, grouped_linear(ctx, x, offsets, golden("weight")), x, offsets, a, b,
                                   golden.scale());
    tape.backward(y, golden("dy"));
    CHECK_CLOSE(y.value(), golden("y"), tolerance(dtype));
    CHECK_CLOSE(x.node()->take(), golden("dx"), tolerance(dtype));
    CHECK_CLOSE(a.grad(), stacked(golden("dA")), tolerance(dtype));
    CHECK_CLOSE(b.grad(), by_expert(golden("dB"), experts), tolerance(dtype));
  });
}
