#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "parallel/comm/reduce_in_order.h"

using namespace nemocube;

namespace {

template <class T>
std::vector<T> reduced(const std::vector<std::vector<T>>& sources, Reduction reduction) {
  std::vector<const void*> pointers;
  for (const auto& s : sources) pointers.push_back(s.data());
  std::vector<T> out(sources[0].size());
  reduce_in_order(pointers, out.data(), static_cast<std::int64_t>(out.size()), dtype_of<T>(), reduction);
  return out;
}

}  // namespace

TEST_CASE("reduce in order: the first source comes first, and bf16 is rounded once") {
  // 1e8 + 1 - 1e8 is 0 from the left in f32; 1e8 - 1e8 + 1 is 1.
  CHECK(reduced<float>({{1e8f, 1e8f}, {1, -1e8f}, {-1e8f, 1}}, Reduction::sum) == std::vector<float>{0, 1});
  // 256 + 1 + 1 = 258 in f32; each sum rounded to bf16 would stay 256.
  const std::vector<bf16> a{bf16(256)}, b{bf16(1)};
  CHECK(static_cast<float>(reduced<bf16>({a, b, b}, Reduction::sum)[0]) == 258);
}

TEST_CASE("reduce in order: integers wrap around, u8 too") {
  const auto most = std::numeric_limits<std::int64_t>::max();
  CHECK(reduced<std::int64_t>({{most}, {1}}, Reduction::sum)[0] == std::numeric_limits<std::int64_t>::min());
  CHECK(reduced<std::uint8_t>({{200}, {100}}, Reduction::sum)[0] == 44);
  CHECK(reduced<std::int32_t>({{-5}, {3}}, Reduction::max)[0] == 3);
  CHECK(reduced<std::int32_t>({{-5}, {3}}, Reduction::min)[0] == -5);
}

TEST_CASE("reduce in order: max and min keep a NaN wherever it comes from") {
  const float nan = std::nanf("");
  for (const Reduction reduction : {Reduction::max, Reduction::min})
    for (std::size_t from = 0; from < 3; ++from) {
      std::vector<std::vector<float>> sources{{1}, {2}, {3}};
      sources[from][0] = nan;
      CHECK(std::isnan(reduced<float>(sources, reduction)[0]));
    }
}

TEST_CASE("reduce in order: the result may replace a source of any length") {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1024}, std::size_t{70001}}) {
    std::vector<std::int32_t> a(count, 3), b(count, 4);
    b.back() = 9;
    const std::array<const void*, 2> sources{a.data(), b.data()};
    reduce_in_order(sources, b.data(), static_cast<std::int64_t>(count), DType::i32, Reduction::sum);
    CHECK(b.front() == (count == 1 ? 12 : 7));
    CHECK(b.back() == 12);
  }
}
