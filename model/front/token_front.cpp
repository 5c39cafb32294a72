#include "model/front/token_front.h"

#include <bit>
#include <cmath>

#include "core/trace.h"
#include "model/front/rounded.h"
#include "ops/embedding/embedding.h"
#include "ops/embedding/embedding_noise.h"

namespace nemocube {
namespace {

/// What sequences keep of noise_magnitude().
struct NoiseMagnitude {
  Tensor value;
  void refill(const NoiseMagnitude& made) const { value.copy_from(made.value); }
};

/// f64 [1]: alpha / sqrt(S H).
Tensor noise_magnitude(const Sequences& whole, double alpha, std::int64_t hidden, Device device) {
  const auto make = [=](const Sequences& rows) {
    expect(rows.padded_length() > 0, "noise on embeddings: the padded length of rows is ",
           rows.padded_length());
    const double elements = static_cast<double>(rows.padded_length()) * static_cast<double>(hidden);
    return NoiseMagnitude{Tensor::from<double>({alpha / std::sqrt(elements)}, {1}).to(device)};
  };
  return whole.derived<NoiseMagnitude>(device, {std::bit_cast<std::int64_t>(alpha), hidden}, make).value;
}

}  // namespace

TokenFront::TokenFront(const ModelSetup& setup, ParameterStore& parameters, TransformPoints& points)
    : noise_(setup.choices.noise),
      hidden_size_(setup.config.hidden_size),
      weight_(&parameters.get(embeddings_name() / "weight")),
      scale_(setup.config.round_embedding_scale
                 ? rounded(setup.config.embedding_scale, weight_->value.dtype())
                 : setup.config.embedding_scale) {
  points.emplace(embeddings_name() / "output", TransformPoint{&output_, PointRole::way_out, embeddings_name(),
                                                              noise_.alpha > 0 ? &rows_ : nullptr});
}

Var TokenFront::operator()(Context& ctx, const Tensor& ids, const Sequences& sequences,
                           std::size_t depth) const {
  const trace::Span span(trace::Category::forward, "embeddings");
  const Var rows = embedding(ctx, ids, weight_->var(), part, scale_);
  const Var out = apply(output_, ctx, rows, sequences);
  if (noise_.alpha == 0 || sequences.numbers().empty()) return out;
  // Behind the transform: ranks that add up their rows add the noise once.
  const Device device = out.value().device();
  const Sequences own = rows_ ? rows_(sequences) : sequences;
  add_embedding_noise(out.value(),
                      {.stream = RandomStream(noise_.seed, depth == 0 ? "neftune" : cat("neftune.", depth)),
                       .magnitude = noise_magnitude(sequences, noise_.alpha, hidden_size_, device),
                       .row_numbers = own.row_numbers_on(device)});
  return out;
}

}  // namespace nemocube
