#include "ops/embedding/embedding_noise.h"

#include "core/profile.h"
#include "ops/embedding/embedding_kernels.h"

namespace nemocube {

void add_embedding_noise(const Tensor& y, const EmbeddingNoise& noise) {
  require(y.defined() && y.ndim() == 2, "embedding noise: y: want shape [T, h], got ", y.shape());
  require(is_float(y.dtype()), "embedding noise: y: want f32, f64 or bf16, got ", y.dtype());
  const auto check = [&](const char* what, const Tensor& t, DType dtype, std::int64_t count) {
    check_dtype(what, t, dtype);
    check_shape(what, t, {count});
    require(t.device() == y.device(), what, ": want a tensor on ", y.device(), " like y, got one on ",
            t.device());
  };
  check("embedding noise: magnitude", noise.magnitude, DType::f64, 1);
  check("embedding noise: row numbers", noise.row_numbers, DType::i64, y.rows());

  static Zone zone("embedding/noise");
  const ZoneTimer timer(zone);
  embedding_noise(y, RandomTable(noise.stream), noise.magnitude, noise.row_numbers);
}

}  // namespace nemocube
