#include "ops/embedding/embedding_noise.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "core/cuda/graph.h"
#include "ops/embedding/embedding.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/far_rows.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Numbers = std::vector<std::int64_t>;

const RandomStream stream(4, "neftune");

EmbeddingNoise noise_of(const Numbers& rows, double magnitude, Device device) {
  return {.stream = stream,
          .magnitude = Tensor::from<double>({magnitude}, {1}).to(device),
          .row_numbers = Tensor::from(rows, {std::ssize(rows)}).to(device)};
}

Numbers counted_from(std::int64_t first, std::int64_t count) {
  Numbers numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(first + i);
  return numbers;
}

/// v of the element, computed in f64.
double by_definition(std::int64_t row, std::int64_t column) {
  const std::uint32_t bits =
      RandomTable(stream).bits(static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(column));
  const std::int64_t k = static_cast<std::int64_t>(bits >> 8) - (bits >> 31 != 0 ? 1 << 24 : 0);
  return static_cast<double>(2 * k + 1) * 0x1p-24;
}

/// y with noise: f64 arithmetic, with the roundings of f32 where the sums are f32.
Tensor with_noise(const Tensor& y, const Numbers& rows, double magnitude) {
  auto values = y.to_vector();
  const std::int64_t cols = y.cols();
  for (std::size_t t = 0; t < rows.size(); ++t)
    for (std::int64_t c = 0; c < cols; ++c) {
      double& value = values[t * static_cast<std::size_t>(cols) + static_cast<std::size_t>(c)];
      const double v = by_definition(rows[t], c);
      if (y.dtype() == DType::f64) {
        const double product = magnitude * v;
        value += product;
      } else {
        const float product = static_cast<float>(static_cast<double>(static_cast<float>(magnitude)) * v);
        value = static_cast<float>(value + static_cast<double>(product));
      }
    }
  return Tensor::from(values, y.shape()).to(y.dtype());
}

}  // namespace

TEST_CASE("embedding noise: against the formula, on every device, in every dtype, at every place" *
          doctest::test_suite("cuda")) {
  const Numbers rows{0, 1, 17, std::int64_t{1} << 40, 3};
  for_dtypes(test_devices("embedding"), [&](Device device, DType dtype) {
    for (const std::int64_t cols : {1, 7, 16, 43, 1030})
      for (const std::int64_t margin : {0, 1, 8}) {
        CAPTURE(cols);
        CAPTURE(margin);
        const Tensor from = random_tensor({std::ssize(rows), cols + margin}, dtype, 3);
        const Tensor all = from.to(device).clone(), y = all.narrow(-1, margin, cols);
        add_embedding_noise(y, noise_of(rows, 0.37, device));
        CHECK_BITS(y, with_noise(from.narrow(-1, margin, cols).clone(), rows, 0.37));
        if (margin > 0) CHECK_BITS(all.narrow(-1, 0, margin), from.narrow(-1, 0, margin));
      }
    const Tensor none = Tensor::empty({0, 5}, dtype, device);
    add_embedding_noise(none, noise_of({}, 1, device));
  });
}

TEST_CASE("embedding noise: uniform within its bounds, and each element on its own") {
  const std::int64_t rows = 1000, cols = 1000;
  const double magnitude = 0.25, n = static_cast<double>(rows * cols);
  const Tensor y = Tensor::zeros({rows, cols}, DType::f32, Device::cpu);
  add_embedding_noise(y, noise_of(counted_from(std::int64_t{1} << 34, rows), magnitude, Device::cpu));
  const auto at = [&](std::int64_t r, std::int64_t c) {
    return y.row<float>(r % rows)[c % cols] / magnitude;
  };
  double mean = 0, square = 0, right = 0, below = 0, block = 0, most = 0;
  constexpr std::size_t bins = 20;
  std::vector<double> count(bins);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const double v = at(r, c);
      most = std::max(most, std::abs(v));
      ++count[std::min(bins - 1, static_cast<std::size_t>((v + 1) / 2 * bins))];
      mean += v / n;
      square += v * v / n;
      right += v * at(r, c + 1) / n;
      below += v * at(r + 1, c) / n;
      block += v * at(r, c + 4) / n;
    }
  CHECK(most < 1);
  CHECK(most > 0.9999);
  const double one = 1 / std::sqrt(n);
  CHECK(std::abs(mean) < 5 * one * std::sqrt(1.0 / 3));
  CHECK(std::abs(square - 1.0 / 3) < 5 * one * std::sqrt(4.0 / 45));
  for (const double product : {right, below, block}) CHECK(std::abs(product) < 5 * one / 3);
  for (const double of_bin : count)
    CHECK(std::abs(of_bin / n - 1.0 / bins) < 5 * one * std::sqrt(1.0 / bins));
}

TEST_CASE("embedding noise: a row keeps its noise wherever it lies, and other streams have other noise") {
  const Tensor zero = Tensor::zeros({5, 24}, DType::f32, Device::cpu), whole = zero.clone(),
               part = Tensor::zeros({2, 24}, DType::f32, Device::cpu), other = zero.clone();
  add_embedding_noise(whole, noise_of(counted_from(70, 5), 1, Device::cpu));
  add_embedding_noise(part, noise_of({74, 71}, 1, Device::cpu));
  CHECK_BITS(part.select(0), whole.select(4));
  CHECK_BITS(part.select(1), whole.select(1));
  EmbeddingNoise of_depth = noise_of(counted_from(70, 5), 1, Device::cpu);
  of_depth.stream = RandomStream(4, "neftune.1");
  add_embedding_noise(other, of_depth);
  const auto a = whole.to_vector(), b = other.to_vector();
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] != b[i]);
}

TEST_CASE("embedding noise: the number of threads changes no element") {
  const int before = omp_get_max_threads();
  std::vector<Tensor> results;
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    results.push_back(random_tensor({3000, 70}, DType::bf16, 1));
    add_embedding_noise(results.back(), noise_of(counted_from(9, 3000), 0.1, Device::cpu));
  }
  omp_set_num_threads(before);
  CHECK_BITS(results[0], results[1]);
}

TEST_CASE("embedding noise: gradient against central differences, and that of the embedding itself") {
  const Tensor ids = Tensor::from<std::int64_t>({2, 0, 2, 4, 2}, {5});
  const auto with = [&](double magnitude) {
    return [&ids, magnitude](Context& ctx, const std::vector<Var>& in) {
      const Var y = embedding(ctx, ids, in[0]);
      add_embedding_noise(y.value(), noise_of(counted_from(11, 5), magnitude, Device::cpu));
      return std::vector<Var>{y};
    };
  };
  CHECK_GRADIENTS(DiffFn(with(0.5)), {random_tensor({5, 3}, DType::f64, 2)});

  const Tensor dy = random_tensor({5, 3}, DType::f64, 3);
  std::vector<Tensor> gradients;
  for (const double magnitude : {0.5, 0.0}) {
    const Var weight = Var::leaf(random_tensor({5, 3}, DType::f64, 2));
    Tape tape;
    Context ctx{.tape = &tape};
    tape.backward(with(magnitude)(ctx, {weight})[0], dy);
    gradients.push_back(weight.grad());
  }
  CHECK_BITS(gradients[0], gradients[1]);
}

TEST_CASE("embedding noise: a CUDA graph takes numbers and magnitude of each launch" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor y = Tensor::zeros({4, 24}, DType::f32, Device::cuda);
  const EmbeddingNoise noise = noise_of(counted_from(0, 4), 1, Device::cuda);
  const auto graph = cuda::capture_graph([&] {
    y.zero();
    add_embedding_noise(y, noise);
  });
  for (const std::int64_t first : {0, 100}) {
    const double magnitude = first == 0 ? 1 : 0.3;
    noise.row_numbers.copy_from(noise_of(counted_from(first, 4), 1, Device::cuda).row_numbers);
    noise.magnitude.copy_from(noise_of({}, magnitude, Device::cuda).magnitude);
    graph->launch();
    CHECK_BITS(
        y, with_noise(Tensor::zeros({4, 24}, DType::f32, Device::cpu), counted_from(first, 4), magnitude));
  }
}

TEST_CASE("embedding noise: rows behind 2^31 elements, on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Numbers rows{3, 1, 2};
  const Tensor from = random_tensor({3, 16}, DType::bf16, 1), far = far_rows(from, Device::cuda);
  add_embedding_noise(far, noise_of(rows, 0.5, Device::cuda));
  CHECK_BITS(gathered_rows(far), with_noise(from, rows, 0.5));
}

TEST_CASE("embedding noise: errors") {
  const Tensor y = Tensor::zeros({3, 2}, DType::f32, Device::cpu);
  const EmbeddingNoise good = noise_of(counted_from(0, 3), 1, Device::cpu);
  CHECK_NOTHROW(add_embedding_noise(y, good));
  const auto message = [&](const Tensor& to, const EmbeddingNoise& noise) {
    return message_of([&] { add_embedding_noise(to, noise); });
  };
  CHECK(message(Tensor::zeros({3}, DType::f32, Device::cpu), good) ==
        "embedding noise: y: want shape [T, h], got [3]");
  CHECK(message(Tensor::zeros({3, 2}, DType::i32, Device::cpu), good) ==
        "embedding noise: y: want f32, f64 or bf16, got i32");
  EmbeddingNoise bad = good;
  bad.row_numbers = noise_of(counted_from(0, 4), 1, Device::cpu).row_numbers;
  CHECK(message(y, bad) == "embedding noise: row numbers: want shape [3], got [4]");
  bad.row_numbers = Tensor::zeros({3}, DType::i32, Device::cpu);
  CHECK(message(y, bad) == "embedding noise: row numbers: want i64, got i32");
  bad.row_numbers = good.row_numbers.to(Device::guard);
  CHECK(message(y, bad) == "embedding noise: row numbers: want a tensor on cpu like y, got one on guard");
  bad = good;
  bad.magnitude = Tensor::zeros({1}, DType::f32, Device::cpu);
  CHECK(message(y, bad) == "embedding noise: magnitude: want f64, got f32");
  bad.magnitude = Tensor::zeros({2}, DType::f64, Device::cpu);
  CHECK(message(y, bad) == "embedding noise: magnitude: want shape [1], got [2]");
}
