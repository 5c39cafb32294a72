#pragma once
#include <memory>
#include <vector>

#include "model/config.h"
#include "model/mixers/moe.h"
#include "model/parameters.h"

namespace nemocube {

/// A model's memory of the sequences that it is decoding, one entry for each block.
struct DecodeState {
  std::vector<std::unique_ptr<MixerState>> blocks;
};

/// NemotronH: embeddings, blocks x <- x + mixer(rmsnorm(x)), final norm, lm_head. Runs on one device.
/// Source: Hugging Face NemotronHForCausalLM; equations in docs/.
class NemotronH {
 public:
  /// Parameters are uninitialised: load them or call initialise().
  NemotronH(const NemotronHConfig& config, DType dtype, Device device = Device::cpu);
  NemotronH(const NemotronH&) = delete;
  NemotronH& operator=(const NemotronH&) = delete;

  /// Token ids i64 [T], divided into `sequences` -> hidden states after the final norm [T, hidden]. With a
  /// state, the tokens continue the sequences of the state. Throws Error for an id outside the vocabulary.
  Var hidden(Context& ctx, const Tensor& ids, const Sequences& sequences, DecodeState* state = nullptr);
  /// hidden [R, hidden] -> logits [R, vocabulary] in f32 (f64 for f64). Not differentiable; see loss().
  Tensor logits(const Tensor& hidden) const;
  /// Sum of the cross-entropy over labelled rows (label -100: not labelled), [] in f32 (f64 for f64). While
  /// recording, gradients are those of grad_scale times the sum; backward must start from 1. Full logits
  /// never exist.
  Var loss(Context& ctx, const Var& hidden, const Tensor& labels, double grad_scale);

  DecodeState make_state(std::int64_t sequences) const;

  const NemotronHConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  ParameterStore& parameters() { return parameters_; }
  const ParameterStore& parameters() const { return parameters_; }
  const std::vector<MoeMixer*>& moe_layers() const { return moe_layers_; }

  bool activation_checkpointing = false;  ///< keep only each mixer's input; backward computes the rest again
  /// Labelled rows whose logits exist at once. The constructor sets as many as make 16 MiB in f32, at least
  /// 256, at most 512.
  std::int64_t loss_chunk_rows = 0;

 private:
  struct Layer {
    const Parameter* norm;
    std::unique_ptr<Mixer> mixer;
  };
  NemotronHConfig config_;
  DType dtype_;
  ParameterStore parameters_;
  const Parameter *embeddings_, *final_norm_, *lm_head_;
  std::vector<Layer> blocks_;
  std::vector<MoeMixer*> moe_layers_;
};

}  // namespace nemocube
