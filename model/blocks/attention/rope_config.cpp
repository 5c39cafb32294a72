#include "model/blocks/attention/rope_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "model/config_checks.h"

namespace nemocube {
namespace {

constexpr double two_pi = 2 * std::numbers::pi;

/// theta^(-2i/n)
std::vector<double> usual_frequencies(double theta, std::int64_t n) {
  std::vector<double> inverse;
  for (std::int64_t i = 0; i < n / 2; ++i)
    inverse.push_back(std::pow(theta, -2 * static_cast<double>(i) / static_cast<double>(n)));
  return inverse;
}

double dynamic_theta(const RopeConfig& rope, std::int64_t n, std::int64_t longest) {
  const auto positions = static_cast<double>(std::max(longest, rope.max_position_embeddings)),
             usual = static_cast<double>(rope.max_position_embeddings), width = static_cast<double>(n);
  const double stretched = rope.factor * positions / usual - (rope.factor - 1);
  return rope.rope_theta * std::pow(stretched, width / (width - 2));
}

double llama3_frequency(const RopeConfig& rope, double f) {
  const double length = two_pi / f, original = static_cast<double>(rope.original_max_position_embeddings);
  if (length < original / rope.high_freq_factor) return f;
  if (length > original / rope.low_freq_factor) return f / rope.factor;
  const double m =
      (original / length - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return ((1 - m) / rope.factor + m) * f;
}

void stretch_by_yarn(const RopeConfig& rope, std::vector<double>& inverse, std::int64_t n) {
  // The pair of channels that turns `rotations` times over the original context.
  const auto pair_of = [&](double rotations) {
    const double original = static_cast<double>(rope.original_max_position_embeddings);
    return static_cast<double>(n) * std::log(original / (rotations * two_pi)) /
           (2 * std::log(rope.rope_theta));
  };
  double low = pair_of(rope.beta_fast), high = pair_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(n - 1));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inverse[i] = inverse[i] * (1 - ramp) + inverse[i] / rope.factor * ramp;
  }
}

double yarn_attention_factor(const RopeConfig& rope) {
  const auto g = [&](double scale) { return rope.factor <= 1 ? 1 : 0.1 * scale * std::log(rope.factor) + 1; };
  return rope.mscale != 0 && rope.mscale_all_dim != 0 ? g(rope.mscale) / g(rope.mscale_all_dim) : g(1);
}

double longrope_attention_factor(const RopeConfig& rope) {
  const double original = static_cast<double>(rope.original_max_position_embeddings);
  return rope.factor <= 1 ? 1 : std::sqrt(1 + std::log(rope.factor) / std::log(original));
}

/// The pairs of channels that turn where the type is proportional.
std::int64_t proportional_pairs(const RopeConfig& rope, std::int64_t head_dim) {
  return static_cast<std::int64_t>(rope.partial_rotary_factor * static_cast<double>(head_dim) / 2);
}

}  // namespace

std::int64_t rotary_width(const RopeConfig& rope, std::int64_t head_dim) {
  if (rope.type == RopeType::proportional) return head_dim;
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
}

RotaryFrequencies rotary_frequencies(const RopeConfig& rope, std::int64_t head_dim, std::int64_t longest) {
  const std::int64_t width = rotary_width(rope, head_dim);
  const double theta = rope.type == RopeType::dynamic ? dynamic_theta(rope, width, longest) : rope.rope_theta;
  RotaryFrequencies made{usual_frequencies(theta, width), 1};
  switch (rope.type) {
    case RopeType::none:
    case RopeType::standard:
    case RopeType::dynamic:
      break;
    case RopeType::linear:
      for (double& f : made.inverse) f /= rope.factor;
      break;
    case RopeType::llama3:
      for (double& f : made.inverse) f = llama3_frequency(rope, f);
      break;
    case RopeType::yarn:
      stretch_by_yarn(rope, made.inverse, width);
      made.attention_factor = rope.attention_factor.value_or(yarn_attention_factor(rope));
      break;
    case RopeType::longrope: {
      const bool stretched = longest > rope.original_max_position_embeddings;
      const std::vector<double>& factors = stretched ? rope.long_factor : rope.short_factor;
      for (std::size_t i = 0; i < made.inverse.size(); ++i) made.inverse[i] /= factors[i];
      made.attention_factor = rope.attention_factor.value_or(longrope_attention_factor(rope));
      break;
    }
    case RopeType::proportional: {
      const std::int64_t turning = proportional_pairs(rope, head_dim);
      for (std::int64_t i = 0; i < std::ssize(made.inverse); ++i) {
        double& f = made.inverse[static_cast<std::size_t>(i)];
        f = i < turning ? f / rope.factor : 0;
      }
      break;
    }
  }
  return made;
}

void validate_rope(const RopeConfig& rope, std::int64_t head_dim) {
  using enum RopeType;
  if (rope.type == none) return;
  constexpr double least = std::numeric_limits<double>::min(), most = std::numeric_limits<double>::max();
  require(rope.partial_rotary_factor > 0 && rope.partial_rotary_factor <= 1,
          "partial_rotary_factor: want a number above 0, at most 1, got ", rope.partial_rotary_factor);
  const std::int64_t width = rotary_width(rope, head_dim);
  if (rope.type == proportional)
    require(proportional_pairs(rope, head_dim) > 0,
            "partial_rotary_factor: want at least one pair of channels that turns, got ",
            rope.partial_rotary_factor, " of head_dim ", head_dim);
  if (rope.partial_rotary_factor == 1 || rope.type == proportional)
    require(width % 2 == 0, "head_dim: want an even number, whose halves the rotary embedding turns, got ",
            head_dim);
  else
    require(width % 2 == 0 && width > 0,
            "partial_rotary_factor: want an even number of channels that turn, got ", width, " of head_dim ",
            head_dim);
  // A theta of 1 or less would give all pairs of channels one frequency, or growing ones.
  require(rope.rope_theta > 1 && rope.rope_theta <= most, "rope_theta: want a number above 1, got ",
          rope.rope_theta);
  if (rope.type != standard) check_range("rope factor", rope.factor, least, most);
  if (rope.type == dynamic) {
    check_size("max_position_embeddings", rope.max_position_embeddings);
    require(rope.factor >= 1, "rope factor: want at least 1 where rope_type is dynamic, got ", rope.factor);
    require(width > 2, "head_dim: want more than 2 channels that turn where rope_type is dynamic, got ",
            width);
  }
  if (rope.type == llama3 || rope.type == yarn || rope.type == longrope)
    check_size("original_max_position_embeddings", rope.original_max_position_embeddings);
  if (rope.type == llama3) {
    check_range("low_freq_factor", rope.low_freq_factor, least, most);
    require(rope.high_freq_factor > rope.low_freq_factor && rope.high_freq_factor <= most,
            "high_freq_factor: want a number above low_freq_factor, which is ", rope.low_freq_factor,
            ", got ", rope.high_freq_factor);
  }
  if (rope.type == yarn) {
    check_range("beta_fast", rope.beta_fast, least, most);
    check_range("beta_slow", rope.beta_slow, least, most);
  }
  if (rope.attention_factor) check_range("attention_factor", *rope.attention_factor, least, most);
  if (rope.type != longrope) return;
  require(rope.original_max_position_embeddings > 1 || rope.factor <= 1,
          "original_max_position_embeddings: want more than 1 where rope_type is longrope, got ",
          rope.original_max_position_embeddings);
  const auto check_factors = [&](const char* key, const std::vector<double>& factors) {
    require(std::ssize(factors) == width / 2, key, ": want head_dim / 2 = ", width / 2, " numbers, got ",
            factors.size());
    for (const double factor : factors) check_range(key, factor, least, most);
  };
  check_factors("short_factor", rope.short_factor);
  check_factors("long_factor", rope.long_factor);
}

}  // namespace nemocube
