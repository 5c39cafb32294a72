#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/rope/rope.h"

namespace nemocube {

/// How the frequencies of a rotary embedding are made. Names are those of `rope_type` in config.json.
enum class RopeType : std::uint8_t {
  none,      ///< attention without position embedding
  standard,  ///< "default"
  linear,
  dynamic,
  llama3,
  yarn,
  longrope,
  proportional,
};

/// The rotary embedding of an attention mixer. Field names are those of `rope_parameters` in config.json; a
/// field that a type does not read keeps its default.
struct RopeConfig {
  RopeType type = RopeType::none;
  double rope_theta = 10000;
  /// The share of a head's channels that turn: the first ones; of proportional, the first of each half.
  double partial_rotary_factor = 1;
  double factor = 1;
  /// Of the model: dynamic begins to stretch behind it.
  std::int64_t max_position_embeddings = 0;
  std::int64_t original_max_position_embeddings = 0;  ///< before a stretched context: llama3, yarn, longrope
  double low_freq_factor = 1, high_freq_factor = 4;   ///< llama3
  double beta_fast = 32, beta_slow = 1;               ///< yarn
  bool truncate = true;                               ///< yarn
  double mscale = 0, mscale_all_dim = 0;              ///< yarn; 0: not given
  std::optional<double> attention_factor = {};        ///< yarn, longrope
  std::vector<double> short_factor = {}, long_factor = {};  ///< longrope: of each pair of channels

  bool operator==(const RopeConfig&) const = default;
};

/// The channels n of a head that turn: partial_rotary_factor head_dim, rounded down. Of proportional all of
/// head_dim, some pairs of which turn by no angle.
std::int64_t rotary_width(const RopeConfig& rope, std::int64_t head_dim);

/// The inverse frequencies f_i of the n/2 pairs of channels, n = rotary_width(), and the attention factor A
/// that cosines and sines are multiplied by. `longest`: positions of the longest sequence of the batch, on
/// which dynamic and longrope depend.
///
///   default   f_i = theta^(-2i/n), A = 1
///   linear    f_i / factor
///   dynamic   default with theta' = theta ((factor S'/M) - (factor - 1))^(n/(n-2)), S' = max(longest, M),
///             M = max_position_embeddings
///   llama3    with the wave length l = 2 pi / f_i and o = original_max_position_embeddings: f_i where
///             l < o / high; f_i / factor where l > o / low; else ((1 - m) / factor + m) f_i,
///             m = (o / l - low) / (high - low)
///   yarn      f_i (1 - ramp_i) + f_i / factor ramp_i, ramp_i = clamp((i - lo) / (hi - lo), 0, 1), with
///             d(r) = n ln(o / (2 pi r)) / (2 ln theta), lo = max(d(beta_fast), 0), hi = min(d(beta_slow),
///             n - 1), both rounded away from each other where `truncate`, and hi 0.001 more where both are
///             equal. A = attention_factor, else with g(x) = 1 for factor <= 1, 0.1 x ln(factor) + 1 above:
///             g(mscale) / g(mscale_all_dim) where both are given, else g(1)
///   longrope  f_i / e_i, e = long_factor where longest > o, else short_factor. A = attention_factor, else 1
///             for factor <= 1, sqrt(1 + ln(factor) / ln(o)) above
///   proportional
///             with n = head_dim and k = floor(partial_rotary_factor n / 2): f_i / factor for i < k, else 0.
///             Channels i and n/2 + i are a pair, so the first k channels of each half turn. A = 1
/// Computed in f64. pre: validate_rope()
/// Source: transformers, modeling_rope_utils.py; "YaRN" (Peng et al., 2023); "LongRoPE" (Ding et al., 2024);
/// proportional: Gemma 4
RotaryFrequencies rotary_frequencies(const RopeConfig& rope, std::int64_t head_dim, std::int64_t longest);

/// Whether the frequencies depend on `longest`.
inline bool depends_on_batch(const RopeConfig& rope) {
  return rope.type == RopeType::dynamic || rope.type == RopeType::longrope;
}

/// Throws Error naming the key, the wish and the value where no frequencies can be made.
void validate_rope(const RopeConfig& rope, std::int64_t head_dim);

}  // namespace nemocube
