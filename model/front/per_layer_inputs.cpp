#include "model/front/per_layer_inputs.h"

#include <cmath>
#include <numbers>

#include "core/trace.h"
#include "model/blocks/per_layer_input/per_layer_input.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"
#include "model/front/rounded.h"
#include "ops/embedding/embedding.h"
#include "ops/scale_columns/scale_columns.h"
#include "ops/view/view.h"

namespace nemocube {

PerLayerInputs::PerLayerInputs(const ModelSetup& setup, ParameterStore& parameters, TransformPoints& points)
    : size_(setup.config.per_layer_input.size),
      hidden_factor_(1 / std::sqrt(static_cast<double>(setup.config.hidden_size))),
      weight_(&parameters.get(per_layer_embeddings_name() / "weight")),
      scale_(rounded(std::sqrt(static_cast<double>(size_)), weight_->value.dtype())),
      projection_({setup, setup.config.common(), parameters, points}, per_layer_model_projection_name()),
      norm_(NormKind::rmsnorm, setup.config.layer_norm_epsilon, parameters,
            per_layer_projection_norm_name()) {
  for (std::int64_t i = 0; i < setup.config.num_layers(); ++i)
    if (setup.config.blocks[static_cast<std::size_t>(i)] == per_layer_input_block) blocks_.push_back(i);
  points.emplace(per_layer_embeddings_name() / "output",
                 TransformPoint{&output_, PointRole::way_out, per_layer_embeddings_name()});
}

void PerLayerInputs::operator()(Context& ctx, const Tensor& ids, const Var& x, const Sequences& sequences,
                                SideStream& side) const {
  const trace::Span span(trace::Category::forward, "per-layer inputs");
  const Var tokens = apply(output_, ctx, embedding(ctx, ids, weight_->var(), part, scale_), sequences);
  const std::int64_t rows = x.value().rows(), width = tokens.value().cols();
  const Var projected = scale(ctx, projection_(ctx, x, sequences), hidden_factor_);
  const Var of_rows = norm_(ctx, reshape(ctx, projected, {rows * std::ssize(blocks_), size_}));
  const Var all = scale(ctx, add(ctx, reshape(ctx, of_rows, {rows, width}), tokens), std::numbers::sqrt2 / 2);
  const std::vector<Var> parts = split_last(ctx, all, std::vector<std::int64_t>(blocks_.size(), size_));
  for (std::size_t i = 0; i < blocks_.size(); ++i) side.set(per_layer_input_of(blocks_[i]), parts[i]);
}

}  // namespace nemocube
