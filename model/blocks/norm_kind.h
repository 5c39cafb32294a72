#pragma once
#include <cstdint>

namespace nemocube {

/// A norm of rows x: of the residual stream over its `hidden_size` channels, or of each head's queries and
/// keys over `head_dim`.
enum class NormKind : std::uint8_t {
  rmsnorm,             ///< x / rms(x) * w
  rmsnorm_one_plus_w,  ///< x / rms(x) * (1 + w): weights around 0 (Gemma 3, Qwen 3.5)
  layernorm,           ///< (x - mean(x)) / std(x) * w + b: the norm has a bias too (Phi, vision towers)
};

}  // namespace nemocube
