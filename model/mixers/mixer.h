#pragma once
#include <memory>
#include <string>

#include "core/autograd.h"
#include "model/parameters.h"
#include "ops/sequences.h"

namespace nemocube {

/// y = x W^T + b, with W `<name>.weight` [out, in] and b `<name>.bias` when the model has one.
class Linear {
 public:
  Linear(ParameterStore& store, const std::string& name);
  Var operator()(Context& ctx, const Var& x) const;

 private:
  const Parameter* weight_;
  const Parameter* bias_;
};

/// One block's memory between calls while decoding.
struct MixerState {
  virtual ~MixerState() = default;
};

/// The operation inside a block: maps normalised token rows [T, hidden] to the rows that the block adds to
/// the residual stream.
class Mixer {
 public:
  virtual ~Mixer() = default;
  /// `sequences` divides the rows of x. With a state, the rows continue the sequences of the state, and the
  /// call advances the state. Without one, every sequence starts from nothing.
  virtual Var forward(Context& ctx, const Var& x, const Sequences& sequences, MixerState* state) = 0;
  /// A state of `count` empty sequences; null for mixers that look at one token at a time.
  virtual std::unique_ptr<MixerState> make_state(std::int64_t count) const;
};

}  // namespace nemocube
