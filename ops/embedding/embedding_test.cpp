#include "ops/embedding/embedding.h"

#include <doctest/doctest.h>
#include <omp.h>

#include "core/rng.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
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

TEST_CASE("embedding: rows are exact copies and their gradients exact sums") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const std::int64_t tokens : {0, 1, 3, 131})
      for (const std::int64_t cols : {0, 1, 16, 31, 257}) {
        CAPTURE(dtype);
        CAPTURE(tokens);
        CAPTURE(cols);
        const std::int64_t vocabulary = 13;
        const Tensor ids = random_ids(tokens, vocabulary, 3);
        const Tensor weight = random_tensor({vocabulary, cols}, dtype, 4);
        Context ctx;
        const Var y = embedding(ctx, ids, weight);
        CHECK(y.shape() == Shape{tokens, cols});
        CHECK_FALSE(y.needs_grad());
        for (std::int64_t t = 0; t < tokens; ++t)
          CHECK_BITS(y.value().select(t), weight.select(ids.data<std::int64_t>()[t]));

        const Tensor dy = small_ints({tokens, cols}, dtype);
        const Tensor want = scatter_reference(ids, dy, vocabulary);
        CHECK_BITS(embedding_grad(ids, weight, dy), want.to(accumulate_dtype(dtype)));
      }
}

TEST_CASE("embedding: a second backward adds") {
  const Tensor ids = random_ids(50, 7, 8);
  const Tensor dy = small_ints({50, 5}, DType::bf16);
  const Tensor weight = random_tensor({7, 5}, DType::bf16, 1);
  Tensor want = scatter_reference(ids, dy, 7);
  for (std::int64_t i = 0; i < want.numel(); ++i) want.data<double>()[i] *= 2;
  CHECK_BITS(embedding_grad(ids, weight, dy, 2), want.to(DType::f32));
}

TEST_CASE("embedding: gradient against central differences") {
  const Tensor ids = Tensor::from<std::int64_t>({2, 0, 2, 4, 2}, {5});
  const DiffFn fn = [&](Context& ctx, const std::vector<Var>& in) {
    return std::vector<Var>{embedding(ctx, ids, in[0])};
  };
  CHECK_GRADIENTS(fn, {random_tensor({5, 3}, DType::f64, 2)});
}

TEST_CASE("embedding: strided table, strided gradient, intermediate table") {
  const Tensor wide = random_tensor({6, 10}, DType::f32, 5);
  const Tensor view = wide.narrow(1, 3, 4);
  const Tensor ids = random_ids(9, 6, 6);
  const Tensor dy = random_tensor({9, 7}, DType::f32, 7).narrow(1, 2, 4);
  Context plain;
  CHECK_BITS(embedding(plain, ids, view).value(), embedding(plain, ids, view.clone()).value());
  CHECK_BITS(embedding_grad(ids, view, dy), embedding_grad(ids, view.clone(), dy.clone()));

  const auto middle = std::make_shared<GradNode>(view.shape(), DType::bf16, Device::cpu, false);
  Tape tape;
  Context ctx{.tape = &tape};
  const Tensor exact = small_ints({9, 4}, DType::bf16);
  tape.backward(embedding(ctx, ids, Var(view.to(DType::bf16), middle)), exact);
  CHECK_BITS(middle->take(), scatter_reference(ids, exact, 6).to(DType::bf16));
}

TEST_CASE("embedding: an id outside the vocabulary gives zeros and touches nothing") {
  const Tensor ids = Tensor::from<std::int64_t>({4, 1, -1}, {3}), dy = small_ints({3, 2}, DType::f32);
  const Tensor weight = random_tensor({4, 2}, DType::f32, 1);
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

TEST_CASE("embedding: the same bits on the guard device") {
  for_dtypes({Device::guard}, [](Device device, DType dtype) {
    const Tensor ids = random_ids(37, 11, 3), weight = random_tensor({11, 6}, dtype, 1),
                 dy = random_tensor({37, 6}, dtype, 2);
    Context ctx;
    CHECK_BITS(embedding(ctx, ids.to(device), weight.to(device)).value(),
               embedding(ctx, ids, weight).value());
    CHECK_BITS(embedding_grad(ids.to(device), weight.to(device), dy.to(device)),
               embedding_grad(ids, weight, dy));
  });
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
