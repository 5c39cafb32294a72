#pragma once
#include "model/stack.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// How the ranks of a context-parallel group attend to each other's keys and values.
enum class ContextAttention : std::uint8_t { ring, all_gather };

/// Context parallelism of a model: every rank of the group computes with its part of each sequence
/// (SequenceCut), except inside attention, Mamba and Gated DeltaNet, whose cores the ranks compute
/// together. Parameters are the same on all ranks, and their gradients are to be added. A group of one rank
/// installs nothing. TensorParallel cuts the rows of MoE blocks, by own() of this object. No seam of the
/// model is set by both, so the two may be installed in any order.
class ContextParallel {
 public:
  /// Throws Error where check_context_parallel() does. The model and the group must outlive this object.
  ContextParallel(Stack& model, Communicator& group, ContextAttention attention);
  ContextParallel(const ContextParallel&) = delete;  // the model's seams lead here
  ContextParallel& operator=(const ContextParallel&) = delete;

  /// The rows of each sequence that this rank has.
  Sequences own(const Sequences& whole) const;
  /// The entries of this rank of ids or labels [T].
  Tensor own_tokens(const Tensor& per_token, const Sequences& whole) const;

  /// While an object lives, sequences are not cut: all ranks compute the same, as in decoding with a state.
  class Whole {
   public:
    explicit Whole(ContextParallel* context) : context_(context) {
      if (context_) context_->cuts_ = false;
    }
    ~Whole() {
      if (context_) context_->cuts_ = true;
    }
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

   private:
    ContextParallel* context_;
  };

 private:
  bool cut() const { return cuts_ && group_.size() > 1; }
  Communicator& group_;
  bool cuts_ = true;
};

}  // namespace nemocube
