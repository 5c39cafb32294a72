#pragma once
#include <cstdint>

#include "core/dtype.h"
#include "ops/sequences.h"

namespace nemocube {

/// Which auxiliary losses of the routers have a coefficient.
struct RouterLosses {
  bool aux = false, seq_aux = false, global_aux = false, z = false;
};

/// The sizes of a training step on every replica, from which follows what its ranks hold and send.
struct StepLoad {
  DType dtype = DType::f32;       ///< of the model
  Sequences microbatch;           ///< of each microbatch
  std::int64_t microbatches = 1;  ///< of a step on each replica
  std::int64_t unlabelled = 0;    ///< the last rows of each sequence that have no label
  std::int64_t loss_rows = 256;   ///< Stack::loss_chunk_rows; 0: the logits of all rows exist at once
  bool checkpointing = false;     ///< Stack::activation_checkpointing
  RouterLosses router_losses;
};

}  // namespace nemocube
