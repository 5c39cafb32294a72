#pragma once
#include <cstdint>

namespace nemocube {

class Stack;
struct ModelConfig;
struct Parameter;

/// How fresh weights are drawn. s = initializer_range, L = number of blocks, U(a) uniform in (-a, a).
///
///                                       hf                               megatron
///     embeddings, lm_head, router       N(0, s)                          N(0, s)
///     projections into a mixer          N(0, s)                          N(0, s)
///     out_proj (Mamba)                  U(1 / sqrt(fan_in L)) with       N(0, s / sqrt(L))
///                                       rescale_prenorm_residual,
///                                       else N(0, s)
///     o_proj, down_proj, fc2_latent     N(0, s)                          N(0, s / sqrt(L))
///     A_log                             log(1 .. heads)                  log of uniform in (1, 16)
///
/// and in both
///     conv1d, weight and bias           U(1 / sqrt(conv_kernel))
///     dt_bias                           inverse softplus of exp(uniform in (ln time_step_min,
///                                       ln time_step_max)), at least time_step_floor
///     A_log, dt_bias (Gated DeltaNet)   log of uniform in (0.01, 16); 1
///     conv1d (Gated DeltaNet)           N(0, s)
///     D, norms                          1
///     other biases, correction bias     0
///     lora_A [r, in] of an adapter      xavier: N(0, sqrt(2 / (in + r))), kaiming: U(1 / sqrt(in))
///     lora_A [E, r, in] of a stack      xavier: N(0, sqrt(2 / (r (in + E)))), kaiming: U(1 / sqrt(r in))
///     lora_B                            0
///
/// hf         the distributions (not the bits) of a fresh Hugging Face NemotronHForCausalLM, except for the
///            convolution, which follows Megatron and AutoModel. Hugging Face 5.23.0 draws the convolution's
///            weight from N(0, s) with a zero bias; at s = 0.02 four such taps shrink their input 25 times
/// megatron   the distributions of Megatron-LM, for pretraining; the published models began with these
enum class Initialisation { hf, megatron };

/// Fills this process's own part of every parameter. Element i of a global tensor depends on
/// (seed, name, i), the law and the config alone, so every rank draws its own part of the
/// same model, however the model is sharded.
void initialise(Stack& model, std::uint64_t seed, Initialisation law = Initialisation::hf);
/// Fills one parameter of a model of this config, by Parameter::law. Throws
/// std::logic_error for a parameter without a law.
void initialise(const Parameter& parameter, const ModelConfig& config, std::uint64_t seed,
                Initialisation law);

}  // namespace nemocube
