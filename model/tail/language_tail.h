#pragma once
#include <optional>

#include "model/blocks/adapter.h"
#include "model/norm.h"
#include "ops/cross_entropy/grad_scale.h"
#include "ops/cross_entropy/labels.h"
#include "ops/vocabulary_part.h"

namespace nemocube {

/// How rows leave a language model: the final norm, and the head with the loss. The head's weight [V, hidden]
/// may be that of the embeddings (ModelConfig::tie_word_embeddings).
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
           const GradScale& grad_scale, std::int64_t chunk_rows) const;

  VocabularyPart part;  ///< the rows of the head, where they are cut over ranks; the default is all

 private:
  Norm norm_;
  const Parameter* head_;
  std::optional<Adapter> adapter_;
  Transform input_;
};

}  // namespace nemocube
