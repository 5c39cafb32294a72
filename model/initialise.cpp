#include "model/initialise.h"

#include <cmath>

#include "core/rng.h"

namespace nemocube {
namespace {

void fill_dt_bias(const Tensor& t, const RandomStream& stream, const NemotronHConfig& config) {
  const double low = std::log(config.time_step_min), high = std::log(config.time_step_max);
  const Tensor values = Tensor::empty(t.shape(), DType::f64);
  for (std::int64_t j = 0; j < t.numel(); ++j) {
    const double drawn = std::exp(low + (high - low) * stream.uniform(static_cast<std::uint64_t>(j)));
    const double dt = std::max(drawn, config.time_step_floor);
    values.data<double>()[j] = dt + std::log(-std::expm1(-dt));
  }
  t.copy_from(values);
}

void fill_a_log(const Tensor& t) {
  const Tensor values = Tensor::empty(t.shape(), DType::f64);
  for (std::int64_t j = 0; j < t.numel(); ++j)
    values.data<double>()[j] = std::log(static_cast<double>(j + 1));
  t.copy_from(values);
}

}  // namespace

void initialise(NemotronH& model, std::uint64_t seed) {
  const NemotronHConfig& config = model.config();
  for (Parameter& p : model.parameters().all()) {
    const RandomStream stream(seed, p.name);
    const auto ends = [&](std::string_view suffix) { return p.name.ends_with(suffix); };
    const Tensor& t = p.value;
    if (ends(".A_log")) {
      fill_a_log(t);
    } else if (ends(".dt_bias")) {
      fill_dt_bias(t, stream, config);
    } else if (ends(".D") || ends("norm.weight") || ends("norm_f.weight")) {
      t.fill(1);
    } else if (ends(".conv1d.weight") || ends(".conv1d.bias")) {
      const double bound = 1 / std::sqrt(static_cast<double>(config.conv_kernel));
      fill_uniform(t, stream, -bound, bound);
    } else if (ends(".bias") || ends("e_score_correction_bias")) {
      t.zero();
    } else if (ends(".mixer.out_proj.weight") && config.rescale_prenorm_residual) {
      const double bound =
          1 / std::sqrt(static_cast<double>(t.cols()) * static_cast<double>(config.blocks.size()));
      fill_uniform(t, stream, -bound, bound);
    } else {
      fill_normal(t, stream, 0, config.initializer_range);
    }
  }
}

}  // namespace nemocube
