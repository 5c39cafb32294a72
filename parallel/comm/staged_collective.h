#pragma once
#include "parallel/comm/collective.h"

namespace nemocube {

/// A collective with copies in host memory in place of tensors of a device. Tensors of the host stay as they
/// are. Each copy to the host is a wait for the device, counted as "staged message" (core/host_wait.h).
class StagedCollective {
 public:
  /// Copies the contribution of rank `rank` of the group to the host.
  StagedCollective(const Collective& call, int rank);
  const Collective& on_host() const { return on_host_; }
  /// Copies the results to the device, once the collective of on_host() is done.
  void bring_back() const;

 private:
  const Collective& call_;
  Collective on_host_;
};

}  // namespace nemocube
