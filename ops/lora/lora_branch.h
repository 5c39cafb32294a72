#pragma once
#include "ops/lora/lora.h"
#include "ops/lora/lora_kernels.h"

/// The low-rank branch of ops/lora/lora.h for operations that have a product of their own. Internal to ops.
namespace nemocube {

/// The branch on rows x. All products are the caller's to order:
///     add_to(y)                         y <- y + post(B u), and u is kept
///     w = gradient_of_u(g)
///     form_dx(dx, w), form_da(da, w), form_db(db, g)
struct LoraRows {
  Tensor x, u, a, b;  ///< x [T, in]; A, B and u in the dtype of x
  double scale = 1;
  KeptElements kept_x{}, kept_y{};
  std::int64_t in_at_once = 0, out_at_once = 0;  ///< rows of a chunk where there is dropout

  /// Throws Error, which begins with `op`, for an adapter or dropout that does not fit x [..., in].
  LoraRows(const char* op, const Tensor& rows, const LoraBranch& branch);
  /// The branch on some of the rows, without u.
  LoraRows of_rows(std::int64_t first, std::int64_t count) const;

  void add_to(const Tensor& y);  ///< y [T, out] in the dtype of x or its accumulation type
  Tensor gradient_of_u(const Tensor& g) const;
  void form_dx(const Output& dx, const Tensor& w) const;
  void form_da(const Output& da, const Tensor& w) const;
  void form_db(const Output& db, const Tensor& g) const;
};

}  // namespace nemocube
