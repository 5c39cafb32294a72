#pragma once
#include <functional>

#include "core/autograd.h"
#include "ops/router/router.h"

namespace nemocube {

/// Token rows on their way through the experts.
struct DispatchedRows {
  /// Returns the rows [R, d], with the rows of one expert consecutive. The rows are on their way since
  /// dispatch(): kernels that are queued in between need not wait for them, and their backward passes need
  /// not wait for the gradients of the rows. Must be called once, before combine.
  std::function<Var(Context&)> receive;
  Tensor offsets;       ///< [local experts + 1] i64: expert e has rows [offsets[e], offsets[e + 1])
  Tensor host_offsets;  ///< the same in host memory; undefined where the host does not know them
  /// Brings the experts' results [R, d'] back: y[t, :] = sum over j of weights[t, j] result of token t's
  /// choice j. To be called once.
  std::function<Var(Context&, const Var& results)> combine;
};

/// Brings token rows to their chosen experts, and the results back. With expert
/// parallelism the experts are on several devices.
class ExpertDispatcher {
 public:
  virtual ~ExpertDispatcher() = default;
  /// x [T, d]; `routing` has the choices and weights of its tokens among `experts` experts. `host` is the
  /// part of the choices that the host needs, in host memory: a first pass sets `host` or leaves it
  /// undefined, and a replay reads it, so that the host waits for the device once.
  virtual DispatchedRows dispatch(Context& ctx, const Var& x, const Routing& routing, std::int64_t experts,
                                  Tensor& host) = 0;
};

/// All experts are on this device: rows are permuted, nothing is sent (ops/permute).
class LocalDispatcher final : public ExpertDispatcher {
 public:
  DispatchedRows dispatch(Context& ctx, const Var& x, const Routing& routing, std::int64_t experts,
                          Tensor& host) override;
};

}  // namespace nemocube
