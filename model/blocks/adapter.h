#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "model/parameters.h"
#include "model/transform.h"
#include "ops/lora/lora.h"

namespace nemocube {

/// The low-rank adapter of one module (ModelChoices::lora). Empty
/// where the model has none for the module.
class Adapter {
 public:
  /// `module`: TensorName::module() of the weight.
  Adapter(const ModelSetup& setup, ParameterStore& parameters, const TensorName& module);

  explicit operator bool() const { return a_ != nullptr; }
  /// The branch on rows of these sequences, `whole` before the row cut. Where the sequences are numbered, as
  /// in training, the branch has the dropout of LoraAdapters. pre: bool(*this)
  LoraBranch branch(const Sequences& whole, Device device) const;
  /// Without dropout. pre: bool(*this)
  LoraBranch branch() const;
  /// For TransformPoint::rows.
  RowCut* rows() { return &rows_; }

 private:
  Tensor columns(Device device) const;

  const Parameter *a_ = nullptr, *b_ = nullptr;
  double scale_ = 1;
  LoraDropout dropout_;
  std::vector<std::int64_t> columns_;  // that the dropout counts, in the whole weight; empty: 0, 1, ...
  mutable Tensor columns_on_device_;
  RowCut rows_;
};

}  // namespace nemocube
