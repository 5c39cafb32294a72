#include "tests/support/terminal_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "core/error.h"

namespace nemocube::testing {
namespace {

winsize size_of_window(int columns, int rows) {
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = static_cast<unsigned short>(rows);
  return size;
}

}  // namespace

TerminalProcess::TerminalProcess(const std::vector<std::string>& arguments, int columns, int rows,
                                 const std::filesystem::path& directory) {
  terminal_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  expect(terminal_ >= 0 && ::grantpt(terminal_) == 0 && ::unlockpt(terminal_) == 0, "no pseudo-terminal");
  const std::string name = ::ptsname(terminal_);
  keeps_open_ = ::open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  expect(keeps_open_ >= 0, "cannot open ", name);
  resize(columns, rows);
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_ = ::fork();
  expect(pid_ >= 0, "fork failed");
  if (pid_ > 0) return;
  ::setsid();
  const int window = ::open(name.c_str(), O_RDWR);  // becomes the controlling terminal
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(window, file);
  if (window > STDERR_FILENO) ::close(window);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(number, SIG_DFL);
  ::setenv("TERM", "xterm", 1);
  if (!directory.empty() && ::chdir(directory.c_str()) != 0) ::_exit(126);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

TerminalProcess::~TerminalProcess() {
  if (pid_ >= 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(keeps_open_);
  ::close(terminal_);
}

bool TerminalProcess::read_some(int milliseconds) {
  pollfd ready{terminal_, POLLIN, 0};
  if (::poll(&ready, 1, milliseconds) <= 0) return false;
  std::array<char, 4096> bytes;
  const ssize_t n = ::read(terminal_, bytes.data(), bytes.size());
  if (n <= 0) return false;
  written_.append(bytes.data(), static_cast<std::size_t>(n));
  return true;
}

std::string TerminalProcess::wait_for(const std::string& text, std::size_t from) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (read_some(0)) {
  }
  while (written_.find(text, from) == std::string::npos && std::chrono::steady_clock::now() < end)
    read_some(100);
  if (written_.find(text, from) == std::string::npos)
    fail("a minute has passed without '", text,
         "' on the terminal: ", written_.substr(std::min(from, written_.size())));
  return written_;
}

void TerminalProcess::type(const std::string& keys) const {
  expect(::write(terminal_, keys.data(), keys.size()) == std::ssize(keys), "cannot type");
}

void TerminalProcess::resize(int columns, int rows) const {
  const winsize size = size_of_window(columns, rows);
  expect(::ioctl(terminal_, TIOCSWINSZ, &size) == 0, "cannot resize");
}

void TerminalProcess::signal(int number) const { ::kill(pid_, number); }

termios TerminalProcess::settings() const {
  termios found{};
  expect(::tcgetattr(keeps_open_, &found) == 0, "no settings");
  return found;
}

int TerminalProcess::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) read_some(50);  // a full terminal would stop the program
  while (read_some(0)) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace nemocube::testing
