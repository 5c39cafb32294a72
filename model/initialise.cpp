#include "model/initialise.h"

#include <cmath>

#include "core/rng.h"
#include "model/stack.h"

namespace nemocube {
namespace {

// Fills the runs of a parameter's own elements: fill(run, first) gets the tensor of one run [n] and the
// global index of its first element.
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

void fill_dt_bias(const Parameter& p, const RandomStream& stream, const BlockConfig& config) {
  const double low = std::log(config.mamba.time_step_min), high = std::log(config.mamba.time_step_max);
  fill(p, [&](std::uint64_t j) {
    const double dt =
        std::max(std::exp(low + (high - low) * stream.uniform(j)), config.mamba.time_step_floor);
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

/// The inputs of a factor A, or with its outputs; of a stack [E, r, in] as NeMo AutoModel's classes of
/// grouped experts count them, which is r times more, and E r for r outputs.
double lora_fan(const Shape& a, bool outputs) {
  const int last = a.ndim() - 1;
  const auto in = static_cast<double>(a[last]), rank = static_cast<double>(a[last - 1]);
  if (last == 1) return in + (outputs ? rank : 0);
  return rank * (in + (outputs ? static_cast<double>(a[0]) : 0));
}

}  // namespace

void initialise(const Parameter& parameter, const ModelConfig& config, std::uint64_t seed,
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
  const BlockConfig& block = config.of_tensor(parameter.id);
  const bool megatron = law == Initialisation::megatron;
  expect(parameter.law.has_value(), "initialise: no law for a tensor named '", parameter.name, "'");
  InitialLaw role = *parameter.law;
  if (role == InitialLaw::scan_output && (megatron || !config.rescale_prenorm_residual))
    role = InitialLaw::output;
  if (!megatron && block.mamba.start == MambaStart::plain) {
    if (role == InitialLaw::conv)
      role = parameter.shard.global_shape().ndim() == 1 ? InitialLaw::zero : InitialLaw::input;
    if (role == InitialLaw::dt_bias) role = InitialLaw::one;
  }
  switch (role) {
    case InitialLaw::input:
      return fill_gauss(parameter, stream, sigma);
    case InitialLaw::output:
      return fill_gauss(parameter, stream, megatron ? sigma / std::sqrt(blocks) : sigma);
    case InitialLaw::scan_output:
      return fill_symmetric(parameter, stream,
                            1 / std::sqrt(static_cast<double>(block.mamba.inner()) * blocks));
    case InitialLaw::conv:
      return fill_symmetric(parameter, stream, 1 / std::sqrt(static_cast<double>(block.mamba.conv_kernel)));
    case InitialLaw::a_log:
      return fill_a_log(parameter, stream, law);
    case InitialLaw::a_log_uniform:
      return fill(parameter,
                  [&](std::uint64_t j) { return std::log(0.01 + (16 - 0.01) * stream.uniform(j)); });
    case InitialLaw::dt_bias:
      return fill_dt_bias(parameter, stream, block);
    case InitialLaw::lora_normal:
      return fill_gauss(parameter, stream, std::sqrt(2 / lora_fan(parameter.shard.global_shape(), true)));
    case InitialLaw::lora_uniform:
      return fill_symmetric(parameter, stream,
                            1 / std::sqrt(lora_fan(parameter.shard.global_shape(), false)));
    case InitialLaw::one:
      return parameter.own.fill(1);
    case InitialLaw::zero:
      return parameter.own.zero();
  }
}

void initialise(Stack& model, std::uint64_t seed, Initialisation law) {
  for (const Parameter& p : model.parameters().all()) initialise(p, model.config(), seed, law);
}

}  // namespace nemocube
