#pragma once
#include <exception>

#include "parallel/parallel_model/parallel_model.h"

namespace nemocube {

/// The weights that ranks hold while they run forward passes only: gathered at the beginning, given back at
/// the end of this object's life (DataParallel::hold). All ranks together.
class HeldWeights {
 public:
  HeldWeights(ParallelModel& model, DataParallel::Held what) : model_(model) { model_.data().hold(what); }
  ~HeldWeights() {
    if (std::uncaught_exceptions() > 0) return;
    try {
      model_.data().let_go();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
      // A collective failed; every later one throws the same again.
    }
  }
  HeldWeights(const HeldWeights&) = delete;
  HeldWeights& operator=(const HeldWeights&) = delete;

 private:
  ParallelModel& model_;
};

}  // namespace nemocube
