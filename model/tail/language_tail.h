#pragma once
#include <optional>

#include "model/blocks/adapter.h"
#include "model/norm.h"
#include "ops/cross_entropy/grad_scale.h"
#include "ops/cross_entropy/labels.h"
#include "ops/cross_entropy/logit_options.h"
#include "ops/vocabulary_part.h"

namespace nemocube {

/// How rows leave a language model: the final norm, and the head with the loss. The head's weight [V, hidden]
/// may be the embeddings' weight (ModelConfig::tie_word_embeddings), and its rows may be divided by their
/// lengths (normalized_head). Logits may have a scale, a bias and a soft cap (logit_scale, head_bias,
/// logit_softcap), and the loss a term of the largest logit (z_loss_weight). The scale is that of the rows
/// before the head.
class LanguageTail {
 public:
  LanguageTail(const ModelSetup& setup, ParameterStore& parameters, TransformPoints& points);
  LanguageTail(const LanguageTail&) = delete;  // the transform points lead here
  LanguageTail& operator=(const LanguageTail&) = delete;

  const Norm& norm() const { return norm_; }
  /// See Stack::logits().
  Tensor logits(const Tensor& hidden) const;
  /// See Stack::loss(). `chunk_rows`: labelled rows whose logits exist at once.
  Var loss(Context& ctx, const Var& hidden, const Labels& labels, const Sequences& sequences,
           const GradScale& grad_scale, std::int64_t chunk_rows, Tensor* token_losses = nullptr) const;

  VocabularyPart part;  ///< the rows of the head, where they are cut over ranks; the default is all

 private:
  Var weight(Context& ctx) const;
  LogitOptions options() const;

  Norm norm_;
  const Parameter* head_;
  const Parameter* bias_;  // null: none
  bool normalized_;
  double scale_, soft_cap_, z_loss_weight_;
  std::optional<Adapter> adapter_;
  Transform input_;
};

}  // namespace nemocube
