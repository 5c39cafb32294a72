#pragma once
#include <memory>
#include <span>
#include <string>

#include "core/autograd.h"
#include "model/parameters.h"
#include "model/side_rows.h"
#include "model/transform.h"
#include "ops/sequences.h"

namespace nemocube {

/// The inputs of a mixer's constructor.
struct MixerSources {
  const ModelSetup& setup;
  const BlockConfig& config;  ///< of the block
  ParameterStore& parameters;
  TransformPoints& points;
  SharedWays* ways = nullptr;           ///< of the blocks on this block's norm; null: alone
  std::span<const SideRows> made = {};  ///< what later blocks read of this one

  SharedWays* way_in() const { return ways; }
  SharedWays* way_out() const { return has_norm_after(config.residual) ? nullptr : ways; }
};

/// One block's memory between calls while decoding.
struct MixerState {
  virtual ~MixerState() = default;
};

/// The record of one block about the forward pass of one training microbatch.
struct MixerRecord {
  virtual ~MixerRecord() = default;
};

/// The operands of a mixer besides its input rows.
struct MixerCall {
  /// Divides the input rows. With a state, the rows continue the sequences of the state, and the call
  /// advances the state. Without one, every sequence starts from nothing.
  const Sequences& sequences;
  MixerState* state = nullptr;
  /// A new record is filled. A record that is filled already means a replay of the same microbatch
  /// (activation checkpointing).
  MixerRecord* record = nullptr;
  /// Rows that the mixer reads of parts before it, and leaves for blocks behind it; null where no block of
  /// the model has such rows.
  SideStream* side = nullptr;

  /// pre: the model has side rows
  SideStream& side_rows() const {
    expect(side != nullptr, "a mixer wants side rows in a pass without any");
    return *side;
  }
};

/// The operation inside a block: maps normalised token rows [T, hidden] to the rows that the block adds to
/// the residual stream. Widths and counts follow from the local weights, which may be parts of the model's.
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual Var forward(Context& ctx, const Var& x, const MixerCall& call) = 0;
  /// A state of `count` empty sequences; null for mixers that treat each token alone.
  virtual std::unique_ptr<MixerState> make_state(std::int64_t count) const;
  /// A new record; null for mixers without records.
  virtual std::unique_ptr<MixerRecord> make_record() const;
};

}  // namespace nemocube
