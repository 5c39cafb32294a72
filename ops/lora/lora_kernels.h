#pragma once
#include <optional>

#include "core/kernel.h"
#include "core/rng.h"

/// The kernel behind ops/lora/lora.h: arguments checked by the caller.
namespace nemocube {

/// Which elements of a matrix are kept, and the factor of those. Without `draws` all are.
struct KeptElements {
  double factor = 1;
  std::optional<RandomTable> draws{};
  std::uint32_t threshold = 0;             ///< an element whose draw is below is dropped
  Tensor row_numbers{}, column_numbers{};  ///< i64; no column numbers: 0, 1, ..

  bool all() const { return !draws; }
  KeptElements of_rows(std::int64_t first, std::int64_t count) const {
    KeptElements part = *this;
    if (!all()) part.row_numbers = row_numbers.narrow(0, first, count);
    return part;
  }
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(row_numbers);
    fn(column_numbers);
  }
};

namespace cpu {
void scale_kept(const Output& to, const Tensor& from, const KeptElements& kept);
}
/// to = kept.factor * from, 0 instead of what is dropped; or to += that, which is rounded to the dtype of
/// `to` before.
///
/// shapes     [rows, cols] both; row strides free; `to` may be `from`
/// dtypes     `from` the same as `to`, or f32 for `to` of bf16
inline const Kernel<cpu::scale_kept> scale_kept("lora/scale_kept");

}  // namespace nemocube
