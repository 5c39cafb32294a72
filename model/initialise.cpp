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

// Fills the runs of a parameter's own elements: fill(run, first) gets the tensor of one run [n] and the global
// index of its first element.
template <class Fill>
void fill_runs(const Parameter& p, Fill&& fill) {
  if (p.own.numel() == 0) return;
  const Tensor elements = p.own.reshape({-1});
  p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
    fill(elements.narrow(0, local, count), static_cast<std::uint64_t>(global));
  });
}

// Element j of the global tensor gets value(j), computed in f64.
template <class Fn>
void fill(const Parameter& p, Fn&& value) {
  fill_runs(p, [&](const Tensor& run, std::uint64_t first) {
    const Tensor values = Tensor::empty(run.shape(), DType::f64, run.device());
    for (std::int64_t j = 0; j < run.numel(); ++j)
      values.data<double>()[j] = value(first + static_cast<std::uint64_t>(j));
    run.copy_from(values);
  });
}

void fill_dt_bias(const Parameter& p, const RandomStream& stream, const NemotronHConfig& config) {
  const double low = std::log(config.time_step_min), high = std::log(config.time_step_max);
  fill(p, [&](std::uint64_t j) {
    const double dt = std::max(std::exp(low + (high - low) * stream.uniform(j)), config.time_step_floor);
    return dt + std::log(-std::expm1(-dt));
  });
}

void fill_a_log(const Parameter& p, const RandomStream& stream, Initialisation law) {
  fill(p, [&](std::uint64_t j) {
    const bool hf = law == Initialisation::hf;
    return std::log(hf ? static_cast<double>(j + 1) : 1 + 15 * stream.uniform(j));
  });
}

void fill_symmetric(const Parameter& p, const RandomStream& stream, double bound) {
  fill_runs(p,
            [&](const Tensor& run, std::uint64_t first) { fill_uniform(run, stream, -bound, bound, first); });
}

void fill_gauss(const Parameter& p, const RandomStream& stream, double sigma) {
  fill_runs(p, [&](const Tensor& run, std::uint64_t first) { fill_normal(run, stream, 0, sigma, first); });
}

}  // namespace

void initialise(const Parameter& parameter, const NemotronHConfig& config, std::uint64_t seed,
                Initialisation law) {
  if (!parameter.own.is_meta() && !parameter.own.device().is_host()) {
    Parameter drawn = parameter;
    drawn.own =
        Tensor::empty(parameter.own.shape(), parameter.own.dtype(), Device::cpu);  // drawn on the host
    initialise(drawn, config, seed, law);
    return parameter.own.copy_from(drawn.own);
  }
  const RandomStream stream(seed, parameter.name);
  const double sigma = config.initializer_range;
  const auto blocks = static_cast<double>(config.blocks.size());
  const bool megatron = law == Initialisation::megatron;
  Role role = role_of(parameter.name);
  if (role == Role::mamba_output && (megatron || !config.rescale_prenorm_residual)) role = Role::output;
  switch (role) {
    case Role::input:
      return fill_gauss(parameter, stream, sigma);
    case Role::output:
      return fill_gauss(parameter, stream, megatron ? sigma / std::sqrt(blocks) : sigma);
    case Role::mamba_output:
      return fill_symmetric(parameter, stream,
                            1 / std::sqrt(static_cast<double>(config.mamba_inner()) * blocks));
    case Role::conv:
      return fill_symmetric(parameter, stream, 1 / std::sqrt(static_cast<double>(config.conv_kernel)));
    case Role::a_log:
      return fill_a_log(parameter, stream, law);
    case Role::dt_bias:
      return fill_dt_bias(parameter, stream, config);
    case Role::one:
      return parameter.own.fill(1);
    case Role::zero:
      return parameter.own.zero();
  }
}

void initialise(NemotronH& model, std::uint64_t seed, Initialisation law) {
  for (const Parameter& p : model.parameters().all()) initialise(p, model.config(), seed, law);
}

}  // namespace nemocube
