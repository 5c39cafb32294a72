#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "core/cuda/graph.h"
#include "ops/lora/lora.h"
#include "ops/lora/lora_kernels.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Numbers = std::vector<std::int64_t>;

Tensor tensor_of(const Numbers& numbers) { return Tensor::from(numbers, {std::ssize(numbers)}); }

const RandomStream stream(4, "layers.0.mixer.q_proj");

Numbers counted(std::int64_t first, std::int64_t count, std::int64_t step = 1) {
  Numbers numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(first + i * step);
  return numbers;
}

/// Factors 0 and 1 of elements with these numbers.
KeptElements kept_of(double probability, const Numbers& rows, const Numbers& columns, Device device) {
  return {.factor = 1,
          .draws = RandomTable(stream),
          .threshold = static_cast<std::uint32_t>(probability * 0x1p32),
          .row_numbers = tensor_of(rows).to(device),
          .column_numbers = columns.empty() ? Tensor() : tensor_of(columns).to(device)};
}

Tensor ones(const Shape& shape, DType dtype, Device device) {
  const Tensor t = Tensor::empty(shape, dtype, device);
  t.fill(1);
  return t;
}

/// 1 where an element is kept, else 0: f32 on the CPU.
Tensor mask_of(const KeptElements& kept, const Tensor& place) {
  scale_kept({place, Into::set}, ones(place.shape(), place.dtype(), place.device()), kept);
  return place.to(Device::cpu).to(DType::f32);
}

Tensor mask_by_definition(double probability, const Numbers& rows, const Numbers& columns) {
  const RandomTable draws(stream);
  const Tensor mask = Tensor::empty({std::ssize(rows), std::ssize(columns)}, DType::f32, Device::cpu);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t c = 0; c < columns.size(); ++c)
      mask.row<float>(static_cast<std::int64_t>(r))[c] =
          draws.bits(static_cast<std::uint64_t>(rows[r]), static_cast<std::uint64_t>(columns[c])) * 0x1p-32 <
                  probability
              ? 0
              : 1;
  return mask;
}

}  // namespace

TEST_CASE("lora dropout: the same elements on every device, in every dtype, at every place" *
          doctest::test_suite("cuda")) {
  const Numbers rows{0, 1, -1, 17, std::int64_t{1} << 40, 3};
  for_dtypes(test_devices("lora"), [&](Device device, DType dtype) {
    for (const std::int64_t cols : {1, 7, 16, 43}) {
      CAPTURE(cols);
      const std::vector<Numbers> cuts{{},
                                      counted(0, cols),
                                      counted(5, cols),
                                      counted(900, cols, -3),
                                      counted(std::int64_t{1} << 33, cols, 5)};
      for (const Numbers& columns : cuts)
        for (const std::int64_t margin : {0, 1, 8}) {
          CAPTURE(margin);
          const Tensor place =
              Tensor::empty({std::ssize(rows), cols + margin}, dtype, device).narrow(-1, margin, cols);
          CHECK_BITS(mask_of(kept_of(0.3, rows, columns, device), place),
                     mask_by_definition(0.3, rows, columns.empty() ? counted(0, cols) : columns));
        }
    }
  });
}

TEST_CASE("lora dropout: set, add, in place, rounding and NaN" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("lora"), [](Device device, DType dtype) {
    const Numbers rows = counted(2, 9), columns = counted(0, 24);
    const KeptElements kept = [&] {
      KeptElements own = kept_of(0.5, rows, columns, device);
      own.factor = 1.3;
      return own;
    }();
    const Tensor from = random_tensor({9, 24}, dtype, 1), old = random_tensor({9, 24}, dtype, 2),
                 mask = mask_by_definition(0.5, rows, columns);
    for (const DType source : {dtype, dtype == DType::bf16 ? DType::f32 : dtype})
      for (const Into how : {Into::set, Into::add}) {
        auto want = old.to_vector();
        const auto v = from.to_vector(), m = mask.to_vector();
        for (std::size_t i = 0; i < want.size(); ++i) {
          const Tensor rounded = Tensor::scalar(
              dtype == DType::f64 ? 1.3 * v[i] : 1.3F * static_cast<float>(v[i]), dtype, Device::cpu);
          const double value = m[i] > 0 ? rounded.to_vector()[0] : 0;
          want[i] = how == Into::add ? want[i] + value : value;
        }
        const Tensor to = old.to(device).clone();
        scale_kept({to, how}, from.to(source).to(device), kept);
        CHECK_BITS(to, Tensor::from(want, {9, 24}).to(dtype));
        if (how == Into::set && source == dtype) {
          const Tensor in_place = from.to(device).clone();
          scale_kept({in_place, Into::set}, in_place, kept);
          CHECK_BITS(in_place, to);
        }
      }
    const Tensor nan = Tensor::empty({9, 24}, dtype, device);
    nan.fill(std::numeric_limits<double>::quiet_NaN());
    scale_kept({nan, Into::set}, nan, kept);
    const auto values = nan.to_vector(), m = mask.to_vector();
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::isnan(values[i]) == (m[i] > 0));
  });
}

TEST_CASE("lora dropout: the number of threads changes no element") {
  const Numbers rows = counted(0, 3000), columns = counted(0, 70);
  const int before = omp_get_max_threads();
  std::vector<Tensor> masks;
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    masks.push_back(
        mask_of(kept_of(0.1, rows, {}, Device::cpu), Tensor::empty({3000, 70}, DType::f32, Device::cpu)));
  }
  omp_set_num_threads(before);
  CHECK_BITS(masks[0], masks[1]);
  CHECK_BITS(masks[0], mask_by_definition(0.1, rows, columns));
}

TEST_CASE("lora dropout: as many elements as the probability says, and each on its own") {
  const std::int64_t rows = 1000, cols = 1000;
  for (const double p : {0.01, 0.1, 0.5, 0.9}) {
    CAPTURE(p);
    const Tensor mask = mask_of(kept_of(p, counted(std::int64_t{1} << 34, rows), {}, Device::cpu),
                                Tensor::empty({rows, cols}, DType::f32, Device::cpu));
    const double n = static_cast<double>(rows * cols), deviation = std::sqrt(p * (1 - p) / n);
    // Means of products of two elements, each less its mean: 0 with a deviation of p (1 - p) / sqrt(n) where
    // they are independent.
    double mean = 0, right = 0, below = 0, block = 0;
    const auto centred = [&](std::int64_t r, std::int64_t c) {
      return mask.row<float>(r % rows)[c % cols] - (1 - p);
    };
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        const double own = centred(r, c);
        mean += own / n;
        right += own * centred(r, c + 1) / n;
        below += own * centred(r + 1, c) / n;
        block += own * centred(r, c + 4) / n;
      }
    CHECK(std::abs(mean) < 5 * deviation);
    for (const double product : {right, below, block})
      CHECK(std::abs(product) < 5 * deviation * std::sqrt(p * (1 - p)));
  }
}

TEST_CASE("lora dropout: rows in another order and cut columns keep their elements" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("lora"))
    for (const DropoutPosition position : {DropoutPosition::pre, DropoutPosition::post}) {
      const bool pre = position == DropoutPosition::pre;
      // Each element of the branch (post) or of x (pre) appears alone in y.
      const std::int64_t rows = 6, cols = 10;
      const Tensor identity = Tensor::zeros({cols, cols}, DType::f32, Device::cpu);
      for (std::int64_t i = 0; i < cols; ++i) identity.row<float>(i)[i] = 1;
      const Tensor x = random_tensor({rows, cols}, DType::f32, 1);
      const auto branch = [&](const Numbers& row_numbers, const Numbers& own_columns) {
        std::vector<double> from;
        for (const std::int64_t r : row_numbers)
          for (const std::int64_t c : own_columns) from.push_back(x.row<float>(r)[c]);
        const std::int64_t count = std::ssize(own_columns);
        const Tensor part = Tensor::from(from, {std::ssize(row_numbers), count}).to(DType::f32).to(device);
        const Tensor square = identity.narrow(0, 0, count).narrow(-1, 0, count).to(device);
        Context ctx;
        return add_lora(ctx, Tensor::zeros(part.shape(), DType::f32, device), part,
                        {square,
                         square,
                         1,
                         {.probability = 0.5,
                          .position = position,
                          .stream = stream,
                          .row_numbers = tensor_of(row_numbers).to(device),
                          .column_numbers = tensor_of(own_columns).to(device)}})
            .value()
            .to(Device::cpu);
      };
      CAPTURE(pre);
      const Tensor whole = branch(counted(0, rows), counted(0, cols));
      int dropped = 0;
      for (const double v : whole.to_vector()) dropped += v == 0 ? 1 : 0;
      CHECK(dropped > 10);
      CHECK(dropped < 50);
      const Numbers order{4, 0, 5}, cut{7, 2, 3};
      const Tensor part = branch(order, cut);
      for (std::size_t r = 0; r < order.size(); ++r)
        for (std::size_t c = 0; c < cut.size(); ++c)
          CHECK(part.row<float>(static_cast<std::int64_t>(r))[c] == whole.row<float>(order[r])[cut[c]]);
    }
}

TEST_CASE("lora dropout: a probability of 0 is no dropout" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("lora")) {
    const Tensor x = random_tensor({5, 8}, DType::f32, 1).to(device),
                 a = random_tensor({2, 8}, DType::f32, 2).to(device),
                 b = random_tensor({3, 2}, DType::f32, 3).to(device);
    Context ctx;
    const auto run = [&](const LoraDropout& dropout) {
      return add_lora(ctx, Tensor::zeros({5, 3}, DType::f32, device), x, {a, b, 1, dropout}).value();
    };
    CHECK_BITS(run({.position = DropoutPosition::pre}), run({}));  // wants neither stream nor numbers
  }
}

TEST_CASE("lora dropout: a CUDA graph drops by the row numbers of each launch" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor x = ones({4, 1}, DType::f32, Device::cuda), b = ones({30, 1}, DType::f32, Device::cuda),
               y = Tensor::zeros({4, 30}, DType::f32, Device::cuda),
               numbers = tensor_of(counted(0, 4)).to(Device::cuda);
  const Tensor a = ones({1, 1}, DType::f32, Device::cuda);
  const auto work = [&] {
    Context ctx;
    y.zero();
    add_lora(ctx, y, x, {a, b, 1, {.probability = 0.5, .stream = stream, .row_numbers = numbers}});
  };
  work();  // products are prepared
  const auto graph = cuda::capture_graph(work);
  for (const std::int64_t first : {0, 100}) {
    numbers.copy_from(tensor_of(counted(first, 4)).to(Device::cuda));
    graph->launch();
    const auto values = y.to_vector(),
               want = mask_by_definition(0.5, counted(first, 4), counted(0, 30)).to_vector();
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(values[i] == 2 * want[i]);
  }
}

TEST_CASE("lora dropout: errors") {
  Context ctx;
  const Tensor x = Tensor::zeros({3, 5}, DType::f32, Device::cpu),
               y = Tensor::zeros({3, 4}, DType::f32, Device::cpu),
               a = Tensor::zeros({2, 5}, DType::f32, Device::cpu),
               b = Tensor::zeros({4, 2}, DType::f32, Device::cpu);
  const auto message = [&](const LoraDropout& dropout) {
    return message_of([&] { add_lora(ctx, y, x, {a, b, 1, dropout}); });
  };
  LoraDropout good{.probability = 0.1, .stream = stream, .row_numbers = tensor_of(counted(0, 3))};
  CHECK_NOTHROW(add_lora(ctx, y, x, {a, b, 1, good}));
  for (const double p : {-0.1, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    LoraDropout bad = good;
    bad.probability = p;
    CHECK(message(bad).find("dropout: want a probability of at least 0 and below 1, got ") !=
          std::string::npos);
  }
  LoraDropout bad = good;
  bad.stream.reset();
  CHECK(message(bad) == "add_lora: dropout: want a random stream, got none");
  bad = good;
  bad.row_numbers = {};
  CHECK(message(bad) == "add_lora: dropout: row numbers: want the numbers of 3, got no tensor");
  bad.row_numbers = tensor_of(counted(0, 4));
  CHECK(message(bad) == "add_lora: dropout: row numbers: want shape [3], got [4]");
  bad.row_numbers = Tensor::zeros({3}, DType::i32, Device::cpu);
  CHECK(message(bad) == "add_lora: dropout: row numbers: want i64, got i32");
  bad.row_numbers = tensor_of(counted(0, 3)).to(Device::guard);
  CHECK(message(bad) == "add_lora: dropout: row numbers: want a tensor on cpu like x, got one on guard");
  bad = good;
  bad.column_numbers = tensor_of(counted(0, 5));  // of x; the dropout is that of the branch
  CHECK(message(bad) == "add_lora: dropout: column numbers: want shape [4], got [5]");
  bad.position = DropoutPosition::pre;
  CHECK_NOTHROW(add_lora(ctx, y, x, {a, b, 1, bad}));
}
