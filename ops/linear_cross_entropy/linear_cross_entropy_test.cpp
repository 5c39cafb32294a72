#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <doctest/doctest.h>

#include "core/allocator.h"
#include "core/variants.h"
#include "ops/cross_entropy/test_support.h"
#include "ops/linear/linear.h"
#include "ops/matmul/matmul.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Tensor product(const Tensor& a, bool ta, const Tensor& b, bool tb) {
  const Tensor c =
      Tensor::empty({ta ? a.cols() : a.rows(), tb ? b.rows() : b.cols()}, DType::f64, Device::cpu);
  matmul({c, Into::set}, a.to(DType::f64), ta, b.to(DType::f64), tb);
  return c;
}

KernelChoice choose(const std::string& name) { return KernelChoice{{{"cross_entropy", name}}}; }
const std::vector<std::string>& variants() { return kernel_variants().at("cross_entropy"); }

}  // namespace

TEST_CASE("linear_cross_entropy: against finite differences") {
  const Tensor labels = labels_of({2, -100, 0, 4, 1, -100, 3}), all = labels_of({2, 0, 0, 4, 1, 3, 3});
  for (const std::string& name : variants()) {
    CAPTURE(name);
    const KernelChoice choice = choose(name);
    for (const std::int64_t chunk : {1, 3, 7, 100})
      for (const Tensor& l : {labels, all}) {
        const DiffFn fn = [&](Context& ctx, const std::vector<Var>& v) {
          Context chosen = ctx;
          chosen.kernels = &choice;
          return std::vector<Var>{linear_cross_entropy(chosen, v[0], v[1], l, 1.0, chunk)};
        };
        GradCheckOptions options;
        options.unit_cotangents = true;
        CHECK_GRADIENTS(fn, {f64({7, 3}, 1), f64({5, 3}, 2)}, options);
        CHECK_GRADIENTS(fn, {f64({7, 6}, 1).narrow(-1, 2, 3), f64({5, 3}, 2)}, options);
        CHECK_GRADIENTS(fn, {f64({1, 7, 3}, 1), f64({5, 3}, 2)}, options);
        for (const bool first : {false, true}) {
          options.wants = {first, !first};
          CHECK_GRADIENTS(fn, {f64({7, 3}, 1), f64({5, 3}, 2)}, options);
        }
        options.wants.clear();
        const DiffFn inner = [&](Context& ctx, const std::vector<Var>& v) {
          Context chosen = ctx;
          chosen.kernels = &choice;
          const Var x = linear(chosen, v[0], v[2]), weight = linear(chosen, v[1], v[2]);
          return std::vector<Var>{linear_cross_entropy(chosen, x, weight, l, 1.0, chunk)};
        };
        CHECK_GRADIENTS(inner, {f64({7, 2}, 1), f64({5, 2}, 2), f64({3, 2}, 3)}, options);
      }
  }
}

TEST_CASE("linear_cross_entropy: all dtypes and variants, against f64" * doctest::test_suite("cuda")) {
  for_dtypes(head_devices(), [](Device device, DType dtype) {
    // On CUDA: a vocabulary of rows that start at multiples of 16 bytes, and one of others.
    const bool on_cuda = device.is_cuda();
    const std::int64_t rows = on_cuda ? 45 : 131, in = on_cuda ? 24 : 32;
    const double scale = 1.0 / 64;
    for (const std::string& name : variants())
      for (const std::int64_t vocabulary :
           on_cuda ? std::vector<std::int64_t>{61, 304} : std::vector<std::int64_t>{301})
        for (const std::int64_t period : {0, 2, 3})
          for (const std::int64_t chunk : {32, 50, 1000}) {
            if (on_cuda && chunk == 50) continue;
            CAPTURE(name);
            CAPTURE(vocabulary);
            CAPTURE(period);
            CAPTURE(chunk);
            const KernelChoice choice = choose(name);
            const Targets labels = some_labels(rows, vocabulary, period);
            const Tensor x = random_tensor({rows, in}, dtype, 1);
            const Tensor w = random_tensor({vocabulary, in}, dtype, 2, 0.3);
            const Expected want = reference(product(x, false, w, true), labels);
            auto scaled = want.dlogits.to_vector();
            for (double& g : scaled) g *= scale;
            const Tensor g = Tensor::from(scaled, {rows, vocabulary});
            struct Outcome {
              Tensor loss, dx, dw;
            };
            const auto run = [&] {
              const Var vx = intermediate(x.to(device)), vw = Var::leaf(w.to(device));
              Tape tape;
              Context ctx;
              ctx.tape = &tape;
              ctx.kernels = &choice;
              const Var loss =
                  linear_cross_entropy(ctx, vx, vw, Labels(labels_of(labels)).to(device), scale, chunk);
              tape.backward(loss, Tensor::scalar(1, accumulate_dtype(dtype), device));
              return Outcome{loss.value(), vx.node()->take(), vw.grad()};
            };
            const Outcome got = run();
            // bf16: gradients of logits are rounded once (2^-9 of each, random signs); "plain" also rounds
            // the logits, of size up to 8, which shifts each probability by up to 2^-6 of itself.
            const bool rounded_logits = dtype == DType::bf16 && name == "plain";
            const double of_gradient = dtype == DType::bf16 ? (rounded_logits ? 0x1p-6 : 0x1p-8) : 1e-6;
            const double of_loss = rounded_logits ? 0x1p-9 : 1e-6;
            CHECK(close(got.loss.to_vector().front(), want.loss, {of_loss, 0}));
            CHECK(relative_error(got.dx, product(g, false, w, false)) < of_gradient);
            CHECK(relative_error(got.dw, product(g, true, x, false)) < of_gradient);
            if (!on_cuda) continue;
            const Outcome again = run();
            CHECK_BITS(again.loss, got.loss);
            CHECK_BITS(again.dx, got.dx);
            CHECK_BITS(again.dw, got.dw);
          }
  });
}

TEST_CASE("linear_cross_entropy: fused adds to what a leaf holds" * doctest::test_suite("cuda")) {
  for (const Device device : head_devices()) {
    CAPTURE(device);
    const Tensor x = random_tensor({9, 4}, DType::f32, 1).to(device);
    const Labels labels = Labels(labels_of(some_labels(9, 6, 4))).to(device);
    const Var once = Var::leaf(random_tensor({6, 4}, DType::f32, 2).to(device)),
              twice = Var::leaf(once.value());
    const auto step = [&](const Var& weight) {
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      tape.backward(linear_cross_entropy(ctx, x, weight, labels, 1.0, 4),
                    Tensor::scalar(1, DType::f32, device));
    };
    step(once);
    step(twice);
    step(twice);
    auto doubled = once.grad().to_vector();
    for (double& g : doubled) g *= 2;
    CHECK_CLOSE(twice.grad(), Tensor::from(doubled, {6, 4}), (Tol{1e-6, 1e-6}));
  }
}

TEST_CASE("linear_cross_entropy: no labelled row gives loss 0 and gradient 0" * doctest::test_suite("cuda")) {
  for (const Device device : head_devices())
    for (const std::string& name : variants())
      for (const std::int64_t rows : {3, 0}) {
        CAPTURE(device);
        CAPTURE(name);
        CAPTURE(rows);
        const Labels labels =
            Labels(labels_of(Targets(static_cast<std::size_t>(rows), ignored_label))).to(device);
        const KernelChoice choice = choose(name);
        const Var x = Var::leaf(random_tensor({rows, 4}, DType::f32, 1).to(device));
        const Var weight = Var::leaf(random_tensor({6, 4}, DType::f32, 2).to(device));
        Tape tape;
        Context ctx;
        ctx.tape = &tape;
        ctx.kernels = &choice;
        const Var loss = linear_cross_entropy(ctx, x, weight, labels, 1.0, 2);
        CHECK(value(loss) == 0);
        tape.backward(loss, Tensor::scalar(1, DType::f32, device));
        CHECK_CLOSE(x.grad(), Tensor::zeros({rows, 4}, DType::f32, Device::cpu), Tol{});
        CHECK_CLOSE(weight.grad(), Tensor::zeros({6, 4}, DType::f32, Device::cpu), Tol{});
      }
}

TEST_CASE("linear_cross_entropy: without a tape only the loss, the same one" * doctest::test_suite("cuda")) {
  for (const Device device : head_devices()) {
    CAPTURE(device);
    const Tensor x = random_tensor({40, 8}, DType::bf16, 1).to(device),
                 w = random_tensor({50, 8}, DType::bf16, 2).to(device);
    const Labels labels = Labels(labels_of(some_labels(40, 50, 3))).to(device);
    const Var weight = Var::leaf(w);
    Context silent;
    const Var loss = linear_cross_entropy(silent, x, weight, labels, 1.0, 16);
    CHECK_FALSE(loss.needs_grad());
    CHECK_FALSE(weight.node()->filled());
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    CHECK_BITS(linear_cross_entropy(ctx, x, weight, labels, 1.0, 16).value(), loss.value());
  }
}

TEST_CASE("linear_cross_entropy: the same bits on the guard device") {
  for (const std::string& name : variants()) {
    const KernelChoice choice = choose(name);
    for_dtypes({Device::guard}, [&](Device device, DType dtype) {
      for (const std::int64_t period : {0, 1, 3}) {
        CAPTURE(name);
        CAPTURE(period);
        const Labels labels(labels_of(some_labels(41, 29, period)));
        const Tensor x = random_tensor({41, 8}, dtype, 1), w = random_tensor({29, 8}, dtype, 2);
        const auto on = [&](Device at) {
          const Var vx = Var::leaf(x.to(at)), vw = Var::leaf(w.to(at));
          Tape tape;
          Context ctx{.tape = &tape, .kernels = &choice};
          const Var loss = linear_cross_entropy(ctx, vx, vw, labels.to(at), 0.25, 16);
          tape.backward(loss, Tensor::scalar(1, accumulate_dtype(dtype), at));
          return std::vector<Tensor>{loss.value(), vx.grad(), vw.grad()};
        };
        const auto got = on(device), want = on(Device::cpu);
        for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
      }
    });
  }
}

TEST_CASE("linear_cross_entropy: a factor of gradients that lies on the device has the bits of a number" *
          doctest::test_suite("cuda")) {
  for (const std::string& name : variants()) {
    const KernelChoice choice = choose(name);
    for_dtypes(test_devices("linear_cross_entropy"), [&](Device device, DType dtype) {
      CAPTURE(name);
      const Labels labels = Labels(labels_of(some_labels(41, 29, 3))).to(device);
      const Tensor x = random_tensor({41, 8}, dtype, 1), w = random_tensor({29, 8}, dtype, 2);
      const auto with = [&](const GradScale& scale, double z_loss) {
        const Var vx = Var::leaf(x.to(device)), vw = Var::leaf(w.to(device));
        Tape tape;
        Context ctx{.tape = &tape, .kernels = &choice};
        const Var loss = linear_cross_entropy(ctx, vx, vw, labels, scale, 16, {}, nullptr,
                                              {.bias = {}, .soft_cap = 0, .z_loss_weight = z_loss});
        tape.backward(loss, Tensor::scalar(1, accumulate_dtype(dtype), device));
        return std::vector<Tensor>{loss.value(), vx.grad(), vw.grad()};
      };
      for (const double z_loss : {0.0, 0.5}) {
        const auto got = with(Tensor::from<double>({1.0 / 77}, {1}).to(device), z_loss),
                   want = with(1.0 / 77, z_loss);
        for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
      }
    });
  }
  CHECK_THROWS_AS(GradScale(Tensor::zeros({1}, DType::f32, Device::cpu)), Error);
  CHECK_THROWS_AS(GradScale(Tensor::zeros({2}, DType::f64, Device::cpu)), Error);
}

TEST_CASE("linear_cross_entropy: room for more labels changes nothing but roundings" *
          doctest::test_suite("cuda")) {
  for (const std::string& name : variants()) {
    const KernelChoice choice = choose(name);
    for_dtypes(test_devices("linear_cross_entropy"), [&](Device device, DType dtype) {
      CAPTURE(name);
      const Tensor values = labels_of(some_labels(41, 29, 3));
      const Tensor x = random_tensor({41, 8}, dtype, 1), w = random_tensor({29, 8}, dtype, 2);
      const auto with_room_for = [&](std::int64_t capacity) {
        const Var vx = Var::leaf(x.to(device)), vw = Var::leaf(w.to(device));
        Tape tape;
        Context ctx{.tape = &tape, .kernels = &choice};
        const Var loss = linear_cross_entropy(ctx, vx, vw, Labels(values, capacity).to(device), 0.25, 16);
        tape.backward(loss, Tensor::scalar(1, accumulate_dtype(dtype), device));
        return std::vector<Tensor>{loss.value(), vx.grad(), vw.grad()};
      };
      const auto want = with_room_for(0);
      const double most = dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f32 ? 0x1p-20 : 0x1p-45;
      for (const std::int64_t capacity : {28, 32, 33, 41, 50}) {
        CAPTURE(capacity);
        const auto got = with_room_for(capacity);
        for (std::size_t i = 0; i < want.size(); ++i) CHECK(relative_error(got[i], want[i]) <= most);
      }
    });
  }
}

TEST_CASE("linear_cross_entropy: work and memory follow the labelled rows and the chunk") {
  const std::int64_t rows = 2048, in = 16, vocabulary = 4096, chunk = 64;
  const Tensor x = random_tensor({rows, in}, DType::f32, 1),
               w = random_tensor({vocabulary, in}, DType::f32, 2);
  Targets labels(static_cast<std::size_t>(rows), ignored_label);
  for (const std::size_t t : {5, 77, 1999}) labels[t] = 3;
  const Var vx = Var::leaf(x), vw = Var::leaf(w);
  vw.node()->into();
  const auto peak = [&](const Targets& chosen) {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    allocator(Device::cpu).reset_peak();
    const std::int64_t before = allocator(Device::cpu).stats().current_bytes;
    linear_cross_entropy(ctx, vx, vw, labels_of(chosen), 1.0, chunk);
    return allocator(Device::cpu).stats().peak_bytes - before;
  };
  reset_matmul_flops();
  peak(labels);
  CHECK(matmul_flops() == 3 * 2.0 * 32 * in * vocabulary);  // three rows, padded to 32
  const Targets all(static_cast<std::size_t>(rows), 1);
  peak(all);  // products are prepared
  // Logits of one chunk, the gradient of x, scratch of the products; all logits would be 32 MiB.
  CHECK(peak(all) < 3 * chunk * vocabulary * 4 + 4 * rows * in * 4 + (2 << 20));
}

TEST_CASE("linear_cross_entropy: errors") {
  Context ctx;
  const Tensor x = Tensor::zeros({3, 2}, DType::f32, Device::cpu),
               w = Tensor::zeros({5, 2}, DType::f32, Device::cpu);
  const Tensor good = labels_of({0, 4, -100});
  for (const std::string& name : variants()) {
    const KernelChoice choice = choose(name);
    ctx.kernels = &choice;
    CHECK_THROWS_AS(linear_cross_entropy(ctx, x, w, labels_of({0, 1}), 1.0, 4), Error);
    CHECK_THROWS_AS(linear_cross_entropy(ctx, x, w, good, 1.0, 0), Error);
    CHECK_THROWS_AS(
        linear_cross_entropy(ctx, x, Tensor::zeros({5, 3}, DType::f32, Device::cpu), good, 1.0, 4), Error);
    CHECK_THROWS_AS(linear_cross_entropy(ctx, x, w.to(DType::bf16), good, 1.0, 4), Error);
    CHECK_THROWS_AS(linear_cross_entropy(ctx, Tensor::zeros({}, DType::f32, Device::cpu), w, good, 1.0, 4),
                    Error);
    ctx.kernels = nullptr;
  }
}
