#pragma once
#include <string_view>
#include <vector>

namespace nemocube {

/// Remembers the first signal of a set during the lifetime of this object, so that a run can end after the
/// current step. A second signal ends the process at once, as it would without this object.
///
/// SIGHUP (the terminal closed) and SIGPIPE (the reader of standard error ended) are watched too, unless the
/// process already ignores them, as it ignores SIGHUP under nohup. As second signals they have no effect:
/// they arrive repeatedly and together with other signals, and a user does not send them out of impatience.
class SignalWatch {
 public:
  /// `first_text` is shown when the first signal arrives.
  SignalWatch(std::vector<int> signals, std::string_view first_text);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  int received() const;  ///< 0: none yet

  /// The text that a second signal shows before it ends the process, cut at 1 KiB.
  void set_second_text(std::string_view text);

 private:
  std::vector<int> signals_;
};

}  // namespace nemocube
