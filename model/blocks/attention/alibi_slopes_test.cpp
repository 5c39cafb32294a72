#include "model/blocks/attention/alibi_slopes.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace nemocube;

TEST_CASE("alibi slopes: powers of two, and the heads beyond one") {
  CHECK(alibi_slopes(1) == std::vector<float>{0x1p-8F});
  CHECK(alibi_slopes(4) == std::vector<float>{0x1p-2F, 0x1p-4F, 0x1p-6F, 0x1p-8F});
  CHECK(alibi_slopes(6) == std::vector<float>{0x1p-2F, 0x1p-4F, 0x1p-6F, 0x1p-8F, 0x1p-1F, 0x1p-3F});
  // Baichuan 13B.
  const std::vector<float> slopes = alibi_slopes(40);
  REQUIRE(slopes.size() == 40);
  for (int h = 0; h < 32; ++h)
    CHECK(slopes[static_cast<std::size_t>(h)] == doctest::Approx(std::exp2(-0.25 * (h + 1))));
  for (int k = 0; k < 8; ++k)
    CHECK(slopes[static_cast<std::size_t>(32 + k)] == doctest::Approx(std::exp2(-0.125 * (2 * k + 1))));
}
