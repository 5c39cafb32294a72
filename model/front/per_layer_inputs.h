#pragma once
#include <vector>

#include "model/blocks/linear.h"
#include "model/norm.h"
#include "ops/vocabulary_part.h"

namespace nemocube {

/// The rows that blocks of per-layer embeddings read (model/blocks/per_layer_input), made from the tokens and
/// from their embeddings x: of L such blocks and rows of P numbers,
///     t = sqrt(P) embed_tokens_per_layer[id]                                     [T, L P]
///     c = RMSNorm(h^-1/2 per_layer_model_projection x), over each P numbers      [T, L P]
///     p = (c + t) / sqrt(2),     of which block l reads the columns [l P, (l + 1) P)
/// sqrt(P) is rounded to the dtype of the weights. All rows have the dtype of the model; each operation
/// rounds once. Backward: of each operation; dx joins the gradient of the embeddings.
/// Source: transformers, gemma4.
class PerLayerInputs {
 public:
  /// pre: the model has such blocks
  PerLayerInputs(const ModelSetup& setup, ParameterStore& parameters, TransformPoints& points);
  PerLayerInputs(const PerLayerInputs&) = delete;  // the transform points lead here
  PerLayerInputs& operator=(const PerLayerInputs&) = delete;

  /// ids [T] i64 and the rows x of the residual stream that they are embedded as -> leaves in `side` the rows
  /// of each block, as many as x has.
  void operator()(Context& ctx, const Tensor& ids, const Var& x, const Sequences& sequences,
                  SideStream& side) const;

  VocabularyPart part;  ///< the rows of embed_tokens_per_layer, where they are cut over ranks

 private:
  std::vector<std::int64_t> blocks_;  // that read
  std::int64_t size_;                 // P
  double hidden_factor_;
  const Parameter* weight_;
  double scale_;
  Transform output_;
  Linear projection_;
  Norm norm_;
};

}  // namespace nemocube
