#include "ops/transpose.h"

#include <doctest/doctest.h>

#include "tests/support/compare.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE_TEMPLATE("transpose: every element in its place, none beside", T, float, double) {
  for (const std::int64_t rows : {1, 8, 13, 40})
    for (const std::int64_t cols : {1, 7, 16, 19}) {
      CAPTURE(rows);
      CAPTURE(cols);
      const Tensor from = random_tensor({rows, cols + 2}, dtype_of<T>(), 1),
                   to = Tensor::zeros({cols, rows + 3}, dtype_of<T>(), Device::cpu);
      transpose(to.data<T>(), rows + 3, from.data<T>(), cols + 2, rows, cols);
      std::int64_t wrong = 0;
      for (std::int64_t c = 0; c < cols; ++c)
        for (std::int64_t r = 0; r < rows + 3; ++r)
          wrong += to.row<T>(c)[r] != (r < rows ? from.row<T>(r)[c] : T(0));
      CHECK(wrong == 0);
    }
}
