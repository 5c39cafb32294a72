#include "ops/cross_entropy/cross_entropy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/cross_entropy/test_support.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("cross_entropy: against finite differences") {
  const Tensor labels = labels_of({2, -100, 0, 4, -100});
  const DiffFn fn = [&](Context& ctx, const std::vector<Var>& v) {
    return std::vector<Var>{cross_entropy(ctx, v[0], labels)};
  };
  CHECK_GRADIENTS(fn, {f64({5, 5}, 1)});
  CHECK_GRADIENTS(fn, {f64({5, 9}, 1).narrow(-1, 2, 5)});
  CHECK_GRADIENTS(fn, {f64({1, 5, 7}, 1)});
}

TEST_CASE("cross_entropy: every dtype against f64" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("cross_entropy"), [](Device device, DType dtype) {
    for (const std::int64_t rows : {0, 1, 37})
      for (const std::int64_t vocabulary : {1, 2, 31, 1009})
        for (const std::int64_t start : {0, 1}) {  // of 16-byte accesses or not, on CUDA
          CAPTURE(rows);
          CAPTURE(vocabulary);
          CAPTURE(start);
          const Targets labels = some_labels(rows, vocabulary, 5);
          const Tensor z = random_tensor({rows, vocabulary / 8 * 8 + 16}, dtype, 1, 3.0)
                               .to(device)
                               .narrow(-1, start, vocabulary);
          const Expected want = reference(z.to(Device::cpu), labels);
          const Var logits = intermediate(z);
          Tape tape;
          Context ctx;
          ctx.tape = &tape;
          const Var loss = cross_entropy(ctx, logits, Labels(labels_of(labels)).to(device));
          const DType acc = accumulate_dtype(dtype);
          CHECK(loss.shape() == Shape{});
          CHECK(loss.value().dtype() == acc);
          tape.backward(loss, Tensor::scalar(0.5, acc, device));
          // The f32 exponential is right to 4 units, the sum to about sqrt(V); both shift a row's loss, whose
          // rounding is in units of the loss itself.
          const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
          const double sums = unit * (8 + std::sqrt(static_cast<double>(vocabulary)));
          CHECK(close(value(loss), want.loss, {4 * unit, sums * static_cast<double>(rows + 1)}));
          auto half = want.dlogits.to_vector();
          for (double& g : half) g *= 0.5;
          // exp(z - lse): the error of lse (about 12 in size) enters as its absolute value.
          const double rel = 24 * unit + sums + (dtype == DType::bf16 ? 0x1p-8 : 0);
          CHECK_CLOSE(logits.node()->take(), Tensor::from(half, z.shape()), (Tol{rel, 4 * unit}));
        }
  });
}

TEST_CASE(
    "cross_entropy: a loss with its gradient has the bits of the loss alone, and needs the logits no more" *
    doctest::test_suite("cuda")) {
  for_dtypes(test_devices("cross_entropy"), [](Device device, DType dtype) {
    for (const std::int64_t vocabulary : {5, 1009, 9008})
      for (const double dloss : {1.0, 0.3}) {
        CAPTURE(vocabulary);
        CAPTURE(dloss);
        const Targets targets = some_labels(5, vocabulary, 4);
        const Labels labels = Labels(labels_of(targets)).to(device);
        const Tensor z = random_tensor({5, vocabulary}, dtype, 1, 3.0);
        const Var logits = intermediate(z.clone().to(device));
        Context without;
        const Var alone = cross_entropy(without, logits, labels, 0.5);
        Tape tape;
        Context ctx{.tape = &tape};
        const Var loss = cross_entropy(ctx, logits, labels, 0.5);
        CHECK_BITS(loss.value(), alone.value());
        logits.value().zero();
        tape.backward(loss, Tensor::scalar(dloss, accumulate_dtype(dtype), device));
        const Tensor got = logits.node()->take();
        auto want = reference(z, targets).dlogits.to_vector();
        for (double& g : want) g *= 0.5 * dloss;
        // Of exponentials and sums as above; then bf16 is rounded to twice.
        const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
        const double rel = unit * (32 + 8 * std::sqrt(static_cast<double>(vocabulary))) +
                           (dtype == DType::bf16 ? 2 * 0x1p-8 : 0);
        CHECK_CLOSE(got, Tensor::from(want, z.shape()), (Tol{rel, 4 * unit}));
      }
  });
}

TEST_CASE("cross_entropy: huge, far apart and non-finite logits" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("cross_entropy")) {
    CAPTURE(device);
    // Of cross_entropy, and of losses and gradient at once.
    const auto loss = [&](const std::vector<float>& z, std::int64_t label) {
      const auto n = static_cast<std::int64_t>(z.size());
      const Tensor logits = Tensor::from(z, {1, n}).to(device),
                   losses = Tensor::empty({1}, DType::f64, device);
      const Labels labels = Labels(labels_of({label})).to(device);
      Context ctx;
      const double alone = value(cross_entropy(ctx, logits, labels));
      softmax_losses_and_gradient(logits, losses, logits, labels.values, 1, {});
      const auto together = losses.item<double>();
      CHECK((together == doctest::Approx(alone) || (std::isnan(alone) && std::isnan(together))));
      return alone;
    };
    const float inf = std::numeric_limits<float>::infinity();
    CHECK(loss({3e38f, 3e38f}, 1) == doctest::Approx(std::log(2.0)));
    CHECK(loss({1e4f, -1e4f}, 0) == 0);
    CHECK(loss({1e4f, -1e4f}, 1) == 2e4);
    CHECK(loss({-inf, 1, 1}, 1) == doctest::Approx(std::log(2.0)));
    CHECK(std::isnan(loss({NAN, 1, 1}, 1)));
    CHECK(std::isnan(loss({1, 1, NAN}, 1)));
    CHECK(std::isnan(loss({inf, 1, 1}, 1)));
    CHECK(std::isnan(loss({NAN, -inf}, 1)));
    CHECK(std::isnan(loss({-inf, -inf}, 1)));
  }
}

TEST_CASE("cross_entropy: the gradient of large logits is as exact as that of small ones" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("cross_entropy")) {
    CAPTURE(device);
    const Tensor z = random_tensor({16, 7}, DType::f32, 1);
    for (std::int64_t i = 0; i < z.numel(); ++i) z.data<float>()[i] += 1e4f;
    const Targets labels = some_labels(16, 7, 0);
    const Var logits = intermediate(z.to(device));
    Tape tape;
    Context ctx{.tape = &tape};
    tape.backward(cross_entropy(ctx, logits, Labels(labels_of(labels)).to(device)),
                  Tensor::scalar(1, DType::f32, device));
    CHECK_CLOSE(logits.node()->take(), reference(z, labels).dlogits, (Tol{1e-6, 1e-6}));
  }
}

TEST_CASE("cross_entropy: the same bits on the guard device") {
  for_dtypes({Device::guard}, [](Device device, DType dtype) {
    const Tensor z = random_tensor({37, 31}, dtype, 1, 3.0);
    const Labels labels(labels_of(some_labels(37, 31, 5)));
    const auto on = [&](Device at) {
      const Var logits = Var::leaf(z.to(at));
      Tape tape;
      Context ctx{.tape = &tape};
      const Var loss = cross_entropy(ctx, logits, labels.to(at), 0.5);
      tape.backward(loss, Tensor::scalar(0.25, accumulate_dtype(dtype), at));
      return std::pair(loss.value(), logits.grad());
    };
    const auto got = on(device), want = on(Device::cpu);
    CHECK_BITS(got.first, want.first);
    CHECK_BITS(got.second, want.second);
  });
}

TEST_CASE("cross_entropy: rows of every width and start, with losses and gradient at once" *
          doctest::test_suite("cuda")) {
  // On CUDA: one block size after the other, several tiles, and more of them than shared memory holds.
  const std::vector<std::pair<std::int64_t, std::int64_t>> widths{{1, 5},    {511, 5},  {513, 3},  {2043, 3},
                                                                  {4093, 3}, {9001, 2}, {70000, 2}};
  for (const Device device : test_devices("cross_entropy"))
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const auto& [vocabulary, rows] : widths)
        for (const std::int64_t start : {0, 3}) {
          // The widest is for CUDA. Term by term, f32 sums of so many terms lose the smallest.
          if (vocabulary > 9001 && !device.is_cuda()) continue;
          CAPTURE(device);
          CAPTURE(dtype);
          CAPTURE(vocabulary);
          CAPTURE(start);
          const Shape whole{rows, vocabulary / 8 * 8 + 16};
          const auto window = [start = start, columns = vocabulary](const Tensor& t) {
            return t.narrow(-1, start, columns);
          };
          const Tensor z = random_tensor(whole, DType::f32, 1, 3.0);
          // A label in the last column; a token that is none, whose logit counts as 0.
          Targets labels = some_labels(rows, vocabulary, 0);
          labels.front() = vocabulary - 1;
          const Expected want = reference(window(z), labels);
          const auto run = [&](bool in_place) {
            const Tensor logits = z.to(device), losses = Tensor::empty({rows}, DType::f64, device);
            const Tensor gradient = in_place ? logits : Tensor::zeros(whole, dtype, device);
            softmax_losses_and_gradient(window(gradient), losses, window(logits),
                                        labels_of(labels).to(device), 0.5, {});
            return std::pair(losses, gradient);
          };
          const auto [losses, gradient] = run(false);
          // On the CPU terms may be added one after the other, with the rounding errors that sum_tol allows.
          const double roundings = std::sqrt(static_cast<double>(vocabulary)) * (device.is_cuda() ? 1 : 8);
          const double sums = 0x1p-24 * (8 + roundings);
          double loss = 0;
          for (const double row : losses.to_vector()) loss += row;
          CHECK(close(loss, want.loss, {0x1p-22, sums * static_cast<double>(rows + 1)}));
          auto half = want.dlogits.to_vector();
          for (double& g : half) g *= 0.5;
          const double rel = 24 * 0x1p-24 + sums + (dtype == DType::bf16 ? 0x1p-8 : 0);
          CHECK_CLOSE(window(gradient), Tensor::from(half, {rows, vocabulary}), (Tol{rel, 0x1p-22}));
          // Nothing beside the window is written.
          const auto beside =
              gradient.narrow(-1, start + vocabulary, 16 - start - vocabulary % 8).to_vector();
          CHECK(std::ranges::all_of(beside, [](double v) { return v == 0; }));
          const auto again = run(dtype == DType::f32);
          CHECK_BITS(again.first, losses);
          CHECK_BITS(window(again.second), window(gradient));
          // The loss alone, of logits in either dtype.
          Context ctx;
          const Tensor stored = window(z.to(dtype));
          const Var alone =
              cross_entropy(ctx, window(z.to(dtype).to(device)), Labels(labels_of(labels)).to(device));
          CHECK(close(value(alone), reference(stored, labels).loss,
                      {0x1p-22, sums * static_cast<double>(rows + 1)}));
        }
}

TEST_CASE("cross_entropy: a label that is no token of the vocabulary" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("cross_entropy"))
    for (const std::int64_t label : {std::int64_t{-1}, std::int64_t{9}, std::int64_t{1} << 40}) {
      CAPTURE(device);
      CAPTURE(label);
      const Tensor z = random_tensor({1, 9}, DType::f32, 1), labels = labels_of({label}).to(device),
                   losses = Tensor::empty({1}, DType::f64, device),
                   gradient = Tensor::empty({1, 9}, DType::f32, device);
      softmax_losses_and_gradient(gradient, losses, z.to(device), labels, 1, {});
      double sum = 0, gradients = 0;
      for (const double v : z.to_vector()) sum += std::exp(v);
      for (const double g : gradient.to_vector()) gradients += g;
      CHECK(losses.item<double>() == doctest::Approx(std::log(sum)));
      CHECK(gradients == doctest::Approx(1));
    }
}

TEST_CASE("cross_entropy: rows past 2^31 elements" * doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("cross_entropy")) return;
  const std::int64_t stride = (std::int64_t{1} << 30) + 8, cols = 21;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    // The software GPU has memory for what is touched; a copy of all rows at once would touch what is between
    // them.
    const Tensor wide = Tensor::empty({3, stride}, dtype, Device::cuda).narrow(-1, 0, cols);
    const Tensor z = random_tensor({3, cols}, dtype, 1), labels = labels_of({2, ignored_label, 20});
    for (std::int64_t r = 0; r < 3; ++r) wide.select(r).copy_from(z.select(r).to(Device::cuda));
    const auto outcome = [&](const Tensor& logits) {
      const Var in = intermediate(logits);
      Tape tape;
      Context ctx{.tape = &tape};
      const Var loss = cross_entropy(ctx, in, Labels(labels).to(Device::cuda));
      tape.backward(loss, Tensor::scalar(1, DType::f32, Device::cuda));
      return std::pair(loss.value(), in.node()->take());
    };
    const auto got = outcome(wide), want = outcome(z.to(Device::cuda));
    CHECK_BITS(got.first, want.first);
    CHECK_BITS(got.second, want.second);
    if (dtype == DType::bf16) continue;
    const Tensor losses = Tensor::empty({3}, DType::f64, Device::cuda);
    softmax_losses_and_gradient(wide, losses, wide, labels_of({2, 5, 20}).to(Device::cuda), 1, {});
    const Tensor dlogits = reference(z, {2, 5, 20}).dlogits;
    for (std::int64_t r = 0; r < 3; ++r) CHECK_CLOSE(wide.select(r), dlogits.select(r), (Tol{1e-6, 1e-6}));
  }
}

TEST_CASE("cross_entropy: labelled rows are gathered, and scattered among zeros" *
          doctest::test_suite("cuda")) {
  const std::int64_t rows = 50;
  for (const Device device : test_devices("cross_entropy"))
    for (const DType dtype : {DType::bf16, DType::f32, DType::f64, DType::i64})
      for (const std::int64_t cols : {0, 1, 3, 8, 30, 520})
        for (const std::int64_t start : {0, 1})
          for (const std::vector<std::int64_t>& list :
               {std::vector<std::int64_t>{}, {0}, {49}, {3, 4, 7, 30, 48}}) {
            CAPTURE(device);
            CAPTURE(dtype);
            CAPTURE(cols);
            const auto count = std::ssize(list);
            const Tensor from = Tensor::empty({rows, cols + 8}, dtype, Device::cpu);
            for (std::int64_t r = 0; r < rows; ++r)
              for (std::int64_t b = 0; b < from.cols() * size_of(dtype); ++b)
                from.host_bytes()[r * from.cols() * size_of(dtype) + b] =
                    static_cast<std::byte>(1 + (r + b) % 50);
            const Tensor window = from.to(device).narrow(-1, start, cols),
                         places = labels_of(list).to(device);
            const Tensor few = Tensor::empty({count + 2, cols}, dtype, device);
            gather_labelled(few, window, places);
            const Tensor all = Tensor::empty({rows, cols + 8}, dtype, device).narrow(-1, start, cols);
            scatter_labelled(all, few.narrow(0, 0, count), places);
            const Tensor want_few = Tensor::zeros({count + 2, cols}, dtype, Device::cpu),
                         want_all = Tensor::zeros({rows, cols}, dtype, Device::cpu);
            const Tensor source = from.narrow(-1, start, cols);
            for (std::int64_t i = 0; i < count; ++i)
              for (const auto& [to, r] :
                   {std::pair(want_few, i), {want_all, list[static_cast<std::size_t>(i)]}})
                to.narrow(0, r, 1).copy_from(source.narrow(0, list[static_cast<std::size_t>(i)], 1));
            CHECK_BITS(few, want_few);
            CHECK_BITS(all, want_all);
          }
}

TEST_CASE("cross_entropy: losses are added in f64" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("cross_entropy"))
    for (const std::int64_t rows : {0, 1, 513, 3000}) {
      CAPTURE(device);
      CAPTURE(rows);
      // The large ones cancel. In f32, what they are added to would be lost.
      std::vector<double> losses;
      double want = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        losses.push_back(static_cast<double>(r) + (r == 0          ? 0
                                                   : r == rows - 1 ? -0x1p40
                                                   : r == 1        ? 0x1p40
                                                                   : 0));
        want += losses.back();
      }
      const Tensor sum = Tensor::empty({}, DType::f32, device);
      sum_losses(sum, Tensor::from(losses, {rows}).to(device));
      CHECK(sum.item<float>() == static_cast<float>(want));
    }
}

TEST_CASE("cross_entropy: errors") {
  Context ctx;
  const Tensor z = Tensor::zeros({3, 5}, DType::f32, Device::cpu);
  CHECK_THROWS_AS(cross_entropy(ctx, z, labels_of({0, 1})), Error);
  CHECK_THROWS_AS(cross_entropy(ctx, z, Tensor::zeros({3}, DType::i32, Device::cpu)), Error);
  CHECK_THROWS_AS(cross_entropy(ctx, Tensor::zeros({3, 5}, DType::i64, Device::cpu), labels_of({0, 4, -100})),
                  Error);
  CHECK_THROWS_AS(cross_entropy(ctx, Tensor::zeros({}, DType::f32, Device::cpu), labels_of({0})), Error);
  CHECK_THROWS_AS(cross_entropy(ctx, z, Tensor::zeros({3, 2}, DType::i64, Device::cpu).narrow(-1, 0, 1)),
                  Error);
}

TEST_CASE("labels: the rows with a target, in order") {
  const Labels labels(labels_of({1, -100, 0, -100, 7}));
  CHECK(labels.count() == 3);
  CHECK(labels.rows.to_vector() == std::vector<double>{0, 2, 4});
  CHECK(labels.values.to_vector() == std::vector<double>{1, -100, 0, -100, 7});
  CHECK(labels.targets.to_vector() == std::vector<double>{1, 0, 7});
  CHECK(Labels(labels_of({})).count() == 0);
  const Labels roomy(labels_of({1, -100, 0, -100, 7}), 4), whole(labels_of({1, -100, 0, -100, 7}), 9);
  CHECK(roomy.rows.to_vector() == std::vector<double>{0, 2, 4, 5});
  CHECK(roomy.targets.to_vector() == std::vector<double>{1, 0, 7, -100});
  CHECK(whole.count() == 5);
  CHECK_THROWS_WITH_AS(Labels(labels_of({1, 0, 7}), 2), doctest::Contains("3 targets"), Error);
  CHECK(Labels(labels_of({1, -100, 0, 2}).reshape({2, 2})).rows.to_vector() == std::vector<double>{0, 2, 3});
}
