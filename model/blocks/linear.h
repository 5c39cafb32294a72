#pragma once
#include "model/blocks/adapter.h"
#include "model/blocks/mixer.h"
#include "model/transform.h"

namespace nemocube {

/// y = output(x' W^T + s (x' A^T) B^T) + b, x' = input(x), with W `<name>.weight` [out, in] and b
/// `<name>.bias` when the model has one. A and B belong to the low-rank adapter of the layer, if it has one
/// (model/lora.h). Without an output transform the bias is part of the product. With an output transform,
/// which may be a sum over devices, the bias is added last. Before a way out that mixers share (SharedWays)
/// the bias is part of the product, on one device; on others zeros take its place.
class Linear {
 public:
  /// `role`: way_in where all rows of the residual stream enter the block through this layer's input,
  /// way_out where they leave through its output.
  Linear(const MixerSources& sources, const TensorName& name, PointRole role = PointRole::other);
  Linear(const Linear&) = delete;  // the transform points lead here
  Linear& operator=(const Linear&) = delete;
  Var operator()(Context& ctx, const Var& x, const Sequences& sequences) const;
  bool has_bias() const { return bias_ != nullptr; }
  std::int64_t out_features() const { return weight_->value.dim(0); }  ///< of the local part

 private:
  Var bias() const;

  const Parameter* weight_;
  const Parameter* bias_;
  Adapter adapter_;
  SharedWays* way_out_;  // null: its own
  Transform input_, output_;
};

}  // namespace nemocube
