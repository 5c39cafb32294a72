#pragma once
#include "model/parameters.h"
#include "model/transform.h"
#include "ops/vocabulary_part.h"

namespace nemocube {

/// How token ids enter a stack: rows of the embeddings, `<embeddings>.weight` [V, hidden], by
/// ModelConfig::embedding_scale, and in training the noise that the run has chosen (ModelChoices::noise).
class TokenFront {
 public:
  TokenFront(const ModelSetup& setup, ParameterStore& parameters, TransformPoints& points);
  TokenFront(const TokenFront&) = delete;  // the transform points lead here
  TokenFront& operator=(const TokenFront&) = delete;

  /// ids [T] i64 -> rows [T, hidden]. `depth`: of multi-token prediction; 0: the input of the blocks. Where
  /// the sequences are numbered, as in training, noise is added, of another draw for each depth.
  Var operator()(Context& ctx, const Tensor& ids, const Sequences& sequences, std::size_t depth = 0) const;

  VocabularyPart part;  ///< the rows of the embeddings, where they are cut over ranks; the default is all

 private:
  NoiseTraining noise_;
  std::int64_t hidden_size_;
  const Parameter* weight_;
  double scale_;
  Transform output_;
  RowCut rows_;
};

}  // namespace nemocube
