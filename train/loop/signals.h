#pragma once
#include <vector>

namespace nemocube {

/// Remembers the first signal of a set for the lifetime of this object, so that a run can end after the step
/// at hand. A second signal of the set ends the process at once, as it would have without this.
class SignalWatch {
 public:
  explicit SignalWatch(const std::vector<int>& signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  int received() const;  ///< 0: none yet

 private:
  std::vector<int> signals_;
};

}  // namespace nemocube
