#include "ops/reduce.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>

#include "ops/reduce_kernels.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Runs fn with a number of OpenMP threads.
template <class Fn>
void with_threads(int count, Fn&& fn) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(count);
  fn();
  omp_set_num_threads(before);
}

/// Column sums by the rule of ops/reduce.h: within segments in row order, then over segments, in A.
template <class A>
Tensor by_segments(const Tensor& x, const std::vector<double>& start) {
  const auto values = x.to_vector();
  const auto cols = static_cast<std::size_t>(x.cols());
  std::vector<double> result;
  for (std::size_t c = 0; c < cols; ++c) {
    A total = 0;
    for (std::int64_t first = 0; first < x.rows(); first += segment_rows) {
      A sum = 0;
      for (std::int64_t r = first; r < std::min(first + segment_rows, x.rows()); ++r)
        sum += static_cast<A>(values[static_cast<std::size_t>(r) * cols + c]);
      total += sum;
    }
    result.push_back(static_cast<A>(start[c]) + total);
  }
  return Tensor::from(result, {x.cols()}).to(accumulate_dtype(x.dtype()));
}

}  // namespace

TEST_CASE("sum_rows: the stated order, bit for bit, for any number of threads, set and added") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const std::int64_t rows : {0, 1, 63, 64, 65, 300})
      for (const std::int64_t cols : {1, 1100}) {
        CAPTURE(dtype);
        CAPTURE(rows);
        CAPTURE(cols);
        const Tensor x = random_tensor({rows, cols}, dtype, 5);
        const Tensor start = random_tensor({cols}, accumulate_dtype(dtype), 6);
        for (const Into how : {Into::set, Into::add}) {
          const auto from =
              how == Into::add ? start.to_vector() : std::vector<double>(static_cast<std::size_t>(cols), 0.0);
          const Tensor want =
              dtype == DType::f64 ? by_segments<double>(x, from) : by_segments<float>(x, from);
          for (const int threads : {1, 2, 3, 7}) {
            CAPTURE(threads);
            const Tensor got = start.clone();
            with_threads(threads, [&] { sum_rows({got, how}, x); });
            CHECK(compare(got, want, {}).ok);
          }
        }
      }
}

TEST_CASE("sum_rows: on cuda the sums of segments have the CPU's bits, for every alignment" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t rows : {0, 1, 64, 65, 1100})
      for (const auto& [start, cols] :
           {std::pair<std::int64_t, std::int64_t>{0, 1}, {0, 24}, {8, 21}, {1, 24}, {3, 0}}) {
        CAPTURE(dtype);
        CAPTURE(rows);
        CAPTURE(start);
        CAPTURE(cols);
        const Tensor x = random_tensor({rows, 32}, dtype, 5);
        const Tensor part = x.narrow(-1, start, cols), own_part = x.to(Device::cuda).narrow(-1, start, cols);
        const Tensor want = Tensor::empty({segments_of(rows), cols}, DType::f32, Device::cpu),
                     got = Tensor::empty({segments_of(rows), cols}, DType::f32, Device::cuda);
        segment_sums(want, part);
        segment_sums(got, own_part);
        CHECK_BITS(got, want);
        const Tensor start_sum = random_tensor({cols}, DType::f32, 6), sum = start_sum.to(Device::cuda);
        auto total = start_sum.to_vector();
        const auto values = part.to_vector();
        for (std::size_t i = 0; i < values.size(); ++i) total[i % total.size()] += values[i];
        sum_rows({sum, Into::add}, own_part);
        CHECK_CLOSE(sum, Tensor::from(total, {cols}), sum_tol(DType::f32, rows + 1));
      }
}

TEST_CASE("sum_rows: the columns of a wider tensor" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("reduce")) {
    const Tensor wide = random_tensor({130, 9}, DType::f32, 7).to(device), part = wide.narrow(-1, 2, 4);
    const Tensor got = Tensor::empty({4}, DType::f32, device), want = Tensor::empty({4}, DType::f32, device);
    sum_rows({got, Into::set}, part);
    sum_rows({want, Into::set}, part.as_contiguous());
    CHECK_BITS(got, want);
  }
}

TEST_CASE("sum_segments: any contiguous shape, rounded once to a narrower dtype" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("reduce")) {
    const Tensor partial =
        Tensor::from(std::vector<float>{1, 2, 3, 4, 0x1p-9f, 0, 0x1p-9f, 0}, {2, 4}).to(device);
    const Tensor got = Tensor::empty({2, 2}, DType::bf16, device);
    sum_segments({got, Into::set}, partial);
    CHECK_BITS(got.to(Device::cpu), Tensor::from(std::vector<double>{1, 2, 3, 4}, {2, 2}).to(DType::bf16));
    sum_segments({got, Into::add}, partial);
    CHECK_BITS(got.to(Device::cpu), Tensor::from(std::vector<double>{2, 4, 6, 8}, {2, 2}).to(DType::bf16));
    CHECK_THROWS_AS(sum_segments({Tensor::empty({3}, DType::f32, device), Into::set}, partial),
                    std::logic_error);
  }
}

TEST_CASE("sum_segments: several sums of any sizes and dtypes are those formed one by one" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("reduce")) {
    SegmentSums sums;
    std::vector<Tensor> want;
    const Shape partials[] = {{3, 40}, {70, 1}, {1, 64}, {5, 0}, {0, 7}, {17, 65}, {2, 33}, {40, 3}};
    for (int i = 0; i < 8; ++i) {
      const Tensor partial = random_tensor(partials[i], DType::f32, 80 + i).to(device);
      const DType dtype = i % 3 == 2 ? DType::bf16 : DType::f32;
      const Into how = i % 2 == 1 ? Into::add : Into::set;
      const Tensor before = random_tensor({partial.cols()}, dtype, 90 + i).to(device);
      want.push_back(before.clone());
      sum_segments({want.back(), how}, partial);
      sums.push_back({{before, how}, partial});
    }
    sum_segments(sums);
    for (std::size_t i = 0; i < want.size(); ++i) {
      CAPTURE(i);
      CHECK_BITS(sums[i].out.to, want[i]);
    }
    sum_segments(SegmentSums{});
  }
}

TEST_CASE("for_segments: every row once, in segments of a fixed length") {
  for (const std::int64_t rows : {0, 1, 64, 65, 200}) {
    CAPTURE(rows);
    std::vector<int> seen(static_cast<std::size_t>(rows), 0);
    std::vector<std::int64_t> length(static_cast<std::size_t>(segments_of(rows)), 0);
    with_threads(3, [&] {
      for_segments(rows, [&](std::int64_t s, std::int64_t first, std::int64_t last) {
        CHECK(first == s * segment_rows);
        length[static_cast<std::size_t>(s)] = last - first;
        for (std::int64_t r = first; r < last; ++r) ++seen[static_cast<std::size_t>(r)];
      });
    });
    CHECK(std::ranges::count(seen, 1) == rows);
    for (std::size_t s = 0; s + 1 < length.size(); ++s) CHECK(length[s] == segment_rows);
  }
}
