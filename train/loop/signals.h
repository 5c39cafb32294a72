#pragma once
#include <string_view>
#include <vector>

namespace nemocube {

/// Remembers the first of a set of signals for the lifetime of this object, so that a run can end after the
/// step at hand. A second one ends the process at once, as it would have without this object.
///
/// SIGHUP and SIGPIPE, the end of the terminal and of the reader of standard error, are watched as well,
/// unless they are ignored already, as SIGHUP is under nohup. They arrive more than once and together with
/// other signals, and nobody who is impatient sends them: as second signals they are ignored.
class SignalWatch {
 public:
  /// `first_text` is shown when the first signal arrives.
  SignalWatch(std::vector<int> signals, std::string_view first_text);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  int received() const;  ///< 0: none yet

  /// What a second signal shows before it ends the process. Texts are cut at 1 KiB.
  void set_second_text(std::string_view text);

 private:
  std::vector<int> signals_;
};

}  // namespace nemocube
