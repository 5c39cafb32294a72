#include "model/initialise.h"

#include <cmath>

#include "core/rng.h"
#include "model/nemotron_h.h"

namespace nemocube {
namespace {

enum class Role { input, output, mamba_output, conv, a_log, dt_bias, one, zero };
struct RoleOf {
  std::string_view suffix;
  Role role;
};
// The law of a parameter depends on the end of its name. A name that matches no entry has no law.
constexpr RoleOf roles[] = {
    {"embeddings.weight", Role::input},
    {"lm_head.weight", Role::input},
    {".gate.weight", Role::input},
    {".in_proj.weight", Role::input},
    {".q_proj.weight", Role::input},
    {".k_proj.weight", Role::input},
    {".v_proj.weight", Role::input},
    {".up_proj.weight", Role::input},
    {".experts.up_proj", Role::input},
    {".fc1_latent_proj.weight", Role::input},
    {".out_proj.weight", Role::mamba_output},
    {".o_proj.weight", Role::output},
    {".down_proj.weight", Role::output},
    {".experts.down_proj", Role::output},
    {".fc2_latent_proj.weight", Role::output},
    {".conv1d.weight", Role::conv},
    {".conv1d.bias", Role::conv},
    {".A_log", Role::a_log},
    {".dt_bias", Role::dt_bias},
    {".D", Role::one},
    {".norm.weight", Role::one},
    {".norm_f.weight", Role::one},
    {"_proj.bias", Role::zero},
    {".e_score_correction_bias", Role::zero},
};

Role role_of(std::string_view name) {
  for (const auto& [suffix, role] : roles)
    if (name.ends_with(suffix)) return role;
  expect(false, "initialise: no law for a tensor named '", name, "'");
  return Role::zero;
}

// t[j] = value(j), computed in f64.
template <class Fn>
void fill(const Tensor& t, Fn&& value) {
  const Tensor values = Tensor::empty(t.shape(), DType::f64);
  for (std::int64_t j = 0; j < t.numel(); ++j)
    values.data<double>()[j] = value(static_cast<std::uint64_t>(j));
  t.copy_from(values);
}

void fill_dt_bias(const Tensor& t, const RandomStream& stream, const NemotronHConfig& config) {
  const double low = std::log(config.time_step_min), high = std::log(config.time_step_max);
  fill(t, [&](std::uint64_t j) {
    const double dt = std::max(std::exp(low + (high - low) * stream.uniform(j)), config.time_step_floor);
    return dt + std::log(-std::expm1(-dt));
  });
}

void fill_a_log(const Tensor& t, const RandomStream& stream, Initialisation law) {
  fill(t, [&](std::uint64_t j) {
    const bool hf = law == Initialisation::hf;
    return std::log(hf ? static_cast<double>(j + 1) : 1 + 15 * stream.uniform(j));
  });
}

void fill_symmetric(const Tensor& t, const RandomStream& stream, double bound) {
  fill_uniform(t, stream, -bound, bound);
}

}  // namespace

void initialise(const Parameter& parameter, const NemotronHConfig& config, std::uint64_t seed,
                Initialisation law) {
  const RandomStream stream(seed, parameter.name);
  const Tensor& t = parameter.value;
  const double sigma = config.initializer_range;
  const auto blocks = static_cast<double>(config.blocks.size());
  const bool megatron = law == Initialisation::megatron;
  Role role = role_of(parameter.name);
  if (role == Role::mamba_output && (megatron || !config.rescale_prenorm_residual)) role = Role::output;
  switch (role) {
    case Role::input:
      return fill_normal(t, stream, 0, sigma);
    case Role::output:
      return fill_normal(t, stream, 0, megatron ? sigma / std::sqrt(blocks) : sigma);
    case Role::mamba_output:
      return fill_symmetric(t, stream, 1 / std::sqrt(static_cast<double>(config.mamba_inner()) * blocks));
    case Role::conv:
      return fill_symmetric(t, stream, 1 / std::sqrt(static_cast<double>(config.conv_kernel)));
    case Role::a_log:
      return fill_a_log(t, stream, law);
    case Role::dt_bias:
      return fill_dt_bias(t, stream, config);
    case Role::one:
      return t.fill(1);
    case Role::zero:
      return t.zero();
  }
}

void initialise(NemotronH& model, std::uint64_t seed, Initialisation law) {
  for (const Parameter& p : model.parameters().all()) initialise(p, model.config(), seed, law);
}

}  // namespace nemocube
