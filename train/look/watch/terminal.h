#pragma once
#include <termios.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nemocube {

/// Columns and rows of the terminal on standard output; 80 x 24 without one, or where it does not tell.
struct TerminalSize {
  std::size_t columns = 80, rows = 24;
};
TerminalSize terminal_size();
/// Whether standard output is a terminal that can be drawn on.
bool terminal_on_stdout();
/// Whether the locale of the environment has UTF-8.
bool utf8_locale();
/// Whether colours are wanted: on a terminal, unless NO_COLOR is set (no-color.org).
bool colour_wanted();

/// A full-screen view on standard output: on the alternate screen of the terminal, without cursor, echo and
/// lines of input. The destructor restores them all, and so does a signal that stops the process (Ctrl-Z).
class Terminal {
 public:
  enum class Event { none, quit, resized, signal };

  /// Takes over the terminal, and SIGINT, SIGTERM, SIGHUP, SIGWINCH and SIGTSTP of this thread.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void draw(const std::vector<std::string>& lines);
  /// Waits for a key q or Ctrl-C (quit), another size, SIGTERM or SIGHUP (signal; see received()), or until
  /// `seconds` have passed (none). A lost terminal counts as the signal SIGHUP.
  Event wait(double seconds);
  int received() const { return received_; }

 private:
  void enter();
  void leave();
  Event handle_signal();
  Event handle_keys();
  bool keys_ = false;  // standard input is the terminal
  termios before_{};
  int signals_ = -1;
  int received_ = 0;
};

/// Writes the whole text to standard output; false where that is no longer possible.
bool write_stdout(std::string_view text);

}  // namespace nemocube
