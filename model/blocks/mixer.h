#pragma once
#include <memory>
#include <string>

#include "core/autograd.h"
#include "model/parameters.h"
#include "model/transform.h"
#include "ops/sequences.h"

namespace nemocube {

/// What a mixer is built from.
struct MixerSources {
  const ModelSetup& setup;
  const BlockConfig& config;  ///< of the block
  ParameterStore& parameters;
  TransformPoints& points;
  SharedWays* ways = nullptr;  ///< of blocks on one norm, this one among them

  SharedWays* way_in() const { return ways; }
  SharedWays* way_out() const { return config.residual == Residual::norm_before_and_after ? nullptr : ways; }
};

/// One block's memory between calls while decoding.
struct MixerState {
  virtual ~MixerState() = default;
};

/// What one block notes in the forward pass of one training microbatch.
struct MixerRecord {
  virtual ~MixerRecord() = default;
};

/// What a mixer gets besides its input rows.
struct MixerCall {
  /// Divides the input rows. With a state, the rows continue the sequences of the state, and the call
  /// advances the state. Without one, every sequence starts from nothing.
  const Sequences& sequences;
  MixerState* state = nullptr;
  /// A new record is filled. A record that is filled already means a replay of the same microbatch
  /// (activation checkpointing).
  MixerRecord* record = nullptr;
};

/// The operation inside a block: maps normalised token rows [T, hidden] to the rows that the block adds to
/// the residual stream. Widths and counts are those of the local weights, which may be a part of the model's.
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual Var forward(Context& ctx, const Var& x, const MixerCall& call) = 0;
  /// A state of `count` empty sequences; null for mixers that look at one token at a time.
  virtual std::unique_ptr<MixerState> make_state(std::int64_t count) const;
  /// Null for mixers that have nothing to note.
  virtual std::unique_ptr<MixerRecord> make_record() const;
};

}  // namespace nemocube
