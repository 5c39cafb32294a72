#include "ops/embedding/embedding.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <array>
#include <cmath>

#include "core/rng.h"
#include "ops/embedding/embedding_kernels.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/far_rows.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Tensor random_ids(std::int64_t tokens, std::int64_t vocabulary, std::uint64_t seed) {
  Tensor ids = Tensor::empty({tokens}, DType::i64, Device::cpu);
  const RandomStream stream(seed, "ids");
  for (std::int64_t t = 0; t < tokens; ++t)
    ids.data<std::int64_t>()[t] = static_cast<std::int64_t>(
        stream.below(static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(vocabulary)));
  return ids;
}

// Integers of at most 8: sums of a few hundred are exact in f32, and the values in bf16.
Tensor small_ints(const Shape& shape, DType dtype) {
  Tensor t = Tensor::empty(shape, DType::f32, Device::cpu);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = static_cast<float>((i * 37 + 5) % 17 - 8);
  return t.to(dtype);
}

Tensor gather_reference(const Tensor& ids, const Tensor& weight) {
  Tensor y = Tensor::empty({ids.numel(), weight.cols()}, weight.dtype(), Device::cpu);
  for (std::int64_t t = 0; t < ids.numel(); ++t)
    y.narrow(0, t, 1).copy_from(weight.narrow(0, ids.data<std::int64_t>()[t], 1));
  return y;
}

Tensor scatter_reference(const Tensor& ids, const Tensor& dy, std::int64_t vocabulary) {
  Tensor sum = Tensor::zeros({vocabulary, dy.cols()}, DType::f64, Device::cpu);
  const auto g = dy.to_vector();
  for (std::int64_t t = 0; t < dy.rows(); ++t)
    for (std::int64_t c = 0; c < dy.cols(); ++c)
      sum.row<double>(ids.data<std::int64_t>()[t])[c] += g[static_cast<std::size_t>(t * dy.cols() + c)];
  return sum;
}

Tensor embedding_grad(const Tensor& ids, const Tensor& weight, const Tensor& dy, int times = 1) {
  const Var w = Var::leaf(weight);
  for (int i = 0; i < times; ++i) {
    Tape tape;
    Context ctx{.tape = &tape};
    tape.backward(embedding(ctx, ids, w), dy);
  }
  return w.grad();
}

}  // namespace

TEST_CASE("embedding: rows are exact copies and their gradients exact sums" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("embedding"), [](Device device, DType dtype) {
    for (const std::int64_t tokens : {0, 1, 3, 131})
      for (const std::int64_t cols : {0, 1, 16, 31, 257, 1040}) {
        CAPTURE(tokens);
        CAPTURE(cols);
        const std::int64_t vocabulary = 13;
        const Tensor ids = random_ids(tokens, vocabulary, 3), on_device = ids.to(device);
        const Tensor weight = random_tensor({vocabulary, cols}, dtype, 4);
        Context ctx;
        const Var y = embedding(ctx, on_device, weight.to(device));
        CHECK_FALSE(y.needs_grad());
        CHECK_BITS(y.value(), gather_reference(ids, weight));

        const Tensor dy = small_ints({tokens, cols}, dtype);
        const Tensor want = scatter_reference(ids, dy, vocabulary);
        CHECK_BITS(embedding_grad(on_device, weight.to(device), dy.to(device)),
                   want.to(accumulate_dtype(dtype)));
      }
  });
}

TEST_CASE("embedding: a second backward adds" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("embedding")) {
    CAPTURE(device);
    const Tensor ids = random_ids(50, 7, 8);
    const Tensor dy = small_ints({50, 5}, DType::bf16);
    const Tensor weight = random_tensor({7, 5}, DType::bf16, 1);
    Tensor want = scatter_reference(ids, dy, 7);
    for (std::int64_t i = 0; i < want.numel(); ++i) want.data<double>()[i] *= 2;
    CHECK_BITS(embedding_grad(ids.to(device), weight.to(device), dy.to(device), 2), want.to(DType::f32));
  }
}

TEST_CASE("embedding: gradient against central differences") {
  const Tensor ids = Tensor::from<std::int64_t>({2, 0, 2, 4, 2}, {5});
  for (const double scale : {1.0, 1.75}) {
    const DiffFn fn = [&](Context& ctx, const std::vector<Var>& in) {
      return std::vector<Var>{embedding(ctx, ids, in[0], {}, scale)};
    };
    CHECK_GRADIENTS(fn, {random_tensor({5, 3}, DType::f64, 2)});
  }
}

TEST_CASE("embedding: a scale of rows and of their gradients" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("embedding"), [](Device device, DType dtype) {
    for (const std::int64_t cols : {1, 16, 31, 257}) {
      CAPTURE(cols);
      const Tensor host_ids = random_ids(131, 13, 3), ids = host_ids.to(device);
      const Tensor weight = random_tensor({13, cols}, dtype, 4);
      const double scale = 25.25;  // its products with values of bf16 and f32 are exact in f64
      Context ctx;
      Tensor want = gather_reference(host_ids, weight).to(DType::f64);
      for (std::int64_t i = 0; i < want.numel(); ++i) want.data<double>()[i] *= scale;
      CHECK_BITS(embedding(ctx, ids, weight.to(device), {}, scale).value(), want.to(dtype));

      const Tensor dy = small_ints({131, cols}, dtype);
      const Var w = Var::leaf(weight.to(device));
      Tape tape;
      Context recording{.tape = &tape};
      tape.backward(embedding(recording, ids, w, {}, 4), dy.to(device));
      Tensor sums = scatter_reference(host_ids, dy, 13);
      for (std::int64_t i = 0; i < sums.numel(); ++i) sums.data<double>()[i] *= 4;
      CHECK_BITS(w.grad(), sums.to(accumulate_dtype(dtype)));
    }
  });
  Context ctx;
  CHECK_THROWS_WITH_AS(
      embedding(ctx, Tensor::from<std::int64_t>({0}, {1}), random_tensor({2, 3}, DType::f32, 1), {}, NAN),
      "embedding: scale: want a finite number, got nan", Error);
}

TEST_CASE("embedding: strided table, strided gradient, intermediate table" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("embedding"))
    // Windows that start at a multiple of 16 bytes, and others.
    for (const std::int64_t start : {3, 8}) {
      CAPTURE(device);
      CAPTURE(start);
      const Tensor wide = random_tensor({6, 32}, DType::f32, 5).to(device);
      const Tensor view = wide.narrow(1, start, 12);
      const Tensor host_ids = random_ids(9, 6, 6), ids = host_ids.to(device);
      const Tensor dy = random_tensor({9, 24}, DType::f32, 7).to(device).narrow(1, start, 12);
      Context plain;
      CHECK_BITS(embedding(plain, ids, view).value(), embedding(plain, ids, view.clone()).value());
      CHECK_BITS(embedding_grad(ids, view, dy), embedding_grad(ids, view.clone(), dy.clone()));

      const auto middle = std::make_shared<GradNode>(view.shape(), DType::bf16, device, false);
      Tape tape;
      Context ctx{.tape = &tape};
      const Tensor exact = small_ints({9, 12}, DType::bf16);
      tape.backward(embedding(ctx, ids, Var(view.to(DType::bf16), middle)), exact.to(device));
      CHECK_BITS(middle->take(), scatter_reference(host_ids, exact, 6).to(DType::bf16));

      // A gradient that is a window.
      const Tensor sum = Tensor::zeros({6, 32}, DType::f32, device);
      for (const Into how : {Into::set, Into::add}) {
        embedding_backward({sum.narrow(1, start, 12), how}, ids, 0, dy, 1);
        if (how == Into::set) CHECK_BITS(sum.narrow(1, start, 12), embedding_grad(ids, view, dy));
      }
      CHECK_BITS(sum.narrow(1, start, 12), embedding_grad(ids, view, dy, 2));
      for (const double outside : sum.narrow(1, start + 12, 20 - start).to_vector()) CHECK(outside == 0);
    }
}

TEST_CASE("embedding: an id outside the vocabulary gives zeros and touches nothing" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("embedding")) {
    CAPTURE(device);
    const Tensor ids = Tensor::from<std::int64_t>({4, 1, -1}, {3}).to(device),
                 dy = small_ints({3, 2}, DType::f32).to(device);
    const Tensor weight = random_tensor({4, 2}, DType::f32, 1).to(device);
    Context ctx;
    const Tensor y = embedding(ctx, ids, weight).value();
    CHECK(y.select(0).to_vector() == std::vector<double>{0, 0});
    CHECK_BITS(y.select(1), weight.select(1));
    CHECK(y.select(2).to_vector() == std::vector<double>{0, 0});
    const Tensor dweight = embedding_grad(ids, weight, dy);
    CHECK_BITS(dweight.select(1), dy.select(1));
    for (const std::int64_t row : {0, 2, 3})
      CHECK(dweight.select(row).to_vector() == std::vector<double>{0, 0});
  }
}

// Additions in ascending order of the tokens give the same rounding everywhere.
TEST_CASE("embedding: the same bits on every device, twice" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("embedding"), [](Device device, DType dtype) {
    // Many tokens of one row, and enough tokens for several tiles of the sort.
    for (const auto& [tokens, vocabulary, cols] :
         {std::array<std::int64_t, 3>{537, 3, 40}, {37, 11, 6}, {1500, 700, 1}}) {
      CAPTURE(tokens);
      const Tensor ids = random_ids(tokens, vocabulary, 3),
                   weight = random_tensor({vocabulary, cols}, dtype, 1),
                   dy = random_tensor({tokens, cols}, dtype, 2);
      Context ctx;
      CHECK_BITS(embedding(ctx, ids.to(device), weight.to(device)).value(),
                 embedding(ctx, ids, weight).value());
      for (const int times : {1, 2, 1})
        CHECK_BITS(embedding_grad(ids.to(device), weight.to(device), dy.to(device), times),
                   embedding_grad(ids, weight, dy, times));
    }
  });
}

TEST_CASE("embedding: rows behind 2^31 elements, on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor ids = Tensor::from<std::int64_t>({2, 0, 2, 1}, {4}),
               table = random_tensor({3, 16}, DType::bf16, 1), dy = random_tensor({4, 16}, DType::bf16, 2),
               sum = random_tensor({3, 16}, DType::f32, 3);
  Context ctx;
  CHECK_BITS(embedding(ctx, ids.to(Device::cuda), far_rows(table, Device::cuda)).value(),
             embedding(ctx, ids, table).value());
  const Tensor far_sum = far_rows(sum, Device::cuda);
  embedding_backward({far_sum, Into::add}, ids.to(Device::cuda), 0, far_rows(dy, Device::cuda), 1);
  embedding_backward({sum, Into::add}, ids, 0, dy, 1);
  CHECK_BITS(gathered_rows(far_sum), sum);
}

TEST_CASE("embedding: bits do not depend on threads") {
  const int before = omp_get_max_threads();
  const Tensor ids = random_ids(501, 11, 9);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor weight = random_tensor({11, 613}, dtype, 10), dy = random_tensor({501, 613}, dtype, 11);
    omp_set_num_threads(1);
    const Tensor one = embedding_grad(ids, weight, dy);
    omp_set_num_threads(3);
    CHECK_BITS(embedding_grad(ids, weight, dy), one);
  }
  omp_set_num_threads(before);
}

TEST_CASE("embedding: errors") {
  Context ctx;
  const Tensor weight = Tensor::zeros({4, 2}, DType::f32, Device::cpu);
  CHECK_THROWS_AS(embedding(ctx, Tensor(), weight), Error);
  CHECK_THROWS_AS(embedding(ctx, Tensor::from<std::int32_t>({0}, {1}), weight), Error);
  CHECK_THROWS_AS(embedding(ctx, Tensor::from<std::int64_t>({0}, {1, 1}), weight), Error);
  CHECK_THROWS_AS(embedding(ctx, random_ids(1, 4, 1), Tensor::zeros({4}, DType::f32, Device::cpu)), Error);
  CHECK_THROWS_AS(embedding(ctx, random_ids(1, 4, 1), Tensor::zeros({4, 2}, DType::i32, Device::cpu)), Error);
  CHECK_THROWS_AS(embedding(ctx, random_ids(1, 4, 1), Tensor()), Error);
}
