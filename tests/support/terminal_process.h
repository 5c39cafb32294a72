#pragma once
#include <termios.h>

#include <filesystem>
#include <string>
#include <vector>

namespace nemocube::testing {

/// A program on a pseudo-terminal of its own, as in a window of a person.
class TerminalProcess {
 public:
  TerminalProcess(const std::vector<std::string>& arguments, int columns, int rows,
                  const std::filesystem::path& directory = {});
  ~TerminalProcess();
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;

  /// Everything written so far, once it holds `text` behind its first `from` bytes. Throws Error after a
  /// minute without it.
  std::string wait_for(const std::string& text, std::size_t from = 0);
  void type(const std::string& keys) const;
  void resize(int columns, int rows) const;
  void signal(int number) const;
  termios settings() const;  ///< of the terminal
  /// The exit code (128 + signal when killed) after the end; wait_for("") then has all that was written.
  int wait();

 private:
  bool read_some(int milliseconds);
  int pid_ = -1, terminal_ = -1;
  int keeps_open_ = -1;  // the other side, so that the settings stay after the program's end
  std::string written_;
};

}  // namespace nemocube::testing
