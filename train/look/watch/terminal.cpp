#include "train/look/watch/terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>
#include <string_view>

#include "core/environment.h"
#include "core/error.h"

namespace nemocube {
namespace {

constexpr std::string_view take_screen = "\033[?1049h\033[?25l", give_screen_back = "\033[?25h\033[?1049l";

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP}) sigaddset(&set, number);
  return set;
}

}  // namespace

bool write_stdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

TerminalSize terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

bool terminal_on_stdout() {
  const char* kind = environment_variable("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && kind && std::string_view(kind) != "dumb";
}

bool utf8_locale() {
  // The program itself stays in the locale "C", which numbers of files want.
  locale_t locale = ::newlocale(LC_CTYPE_MASK, "", nullptr);
  if (locale == nullptr) return false;
  const bool utf8 = std::strcmp(::nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
  ::freelocale(locale);
  return utf8;
}

bool colour_wanted() {
  const char* refused = environment_variable("NO_COLOR");
  return terminal_on_stdout() && (!refused || *refused == '\0');
}

Terminal::Terminal() : keys_(::isatty(STDIN_FILENO) == 1) {
  const sigset_t set = watched();
  require(::sigprocmask(SIG_BLOCK, &set, nullptr) == 0,
          "the signals of the terminal: ", std::strerror(errno));
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  require(signals_ >= 0, "the signals of the terminal: ", std::strerror(errno));
  if (keys_) keys_ = ::tcgetattr(STDIN_FILENO, &before_) == 0;
  enter();
}

Terminal::~Terminal() {
  leave();
  ::close(signals_);
  const sigset_t set = watched();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void Terminal::enter() {
  if (keys_) {
    termios settings = before_;
    settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    settings.c_cc[VMIN] = 0;
    settings.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &settings);
  }
  write_stdout(take_screen);
}

void Terminal::leave() {
  write_stdout(give_screen_back);
  if (keys_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

void Terminal::draw(const std::vector<std::string>& lines) {
  std::string frame = "\033[H";
  for (std::size_t i = 0; i < lines.size(); ++i) frame += cat(i == 0 ? "" : "\r\n", lines[i], "\033[K");
  frame += "\033[J";
  if (!write_stdout(frame) && received_ == 0) received_ = SIGHUP;
}

Terminal::Event Terminal::wait(double seconds) {
  if (received_ != 0) return Event::signal;
  std::array<pollfd, 2> watched{{{signals_, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
  const int ready = ::poll(watched.data(), keys_ ? 2 : 1, static_cast<int>(seconds * 1000));
  if (ready <= 0) return Event::none;
  if (watched[0].revents != 0) return handle_signal();
  if (watched[1].revents != 0) return handle_keys();
  return Event::none;
}

Terminal::Event Terminal::handle_signal() {
  signalfd_siginfo signal{};
  if (::read(signals_, &signal, sizeof signal) != static_cast<ssize_t>(sizeof signal)) return Event::none;
  switch (static_cast<int>(signal.ssi_signo)) {
    case SIGINT:
      return Event::quit;
    case SIGWINCH:
      return Event::resized;
    case SIGTSTP:
      leave();
      std::raise(SIGSTOP);  // goes on here after SIGCONT
      enter();
      return Event::resized;
    default:
      received_ = static_cast<int>(signal.ssi_signo);
      return Event::signal;
  }
}

Terminal::Event Terminal::handle_keys() {
  std::array<char, 64> keys{};
  const ssize_t n = ::read(STDIN_FILENO, keys.data(), keys.size());
  if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) {
    received_ = SIGHUP;
    return Event::signal;
  }
  const auto typed = std::span(keys).first(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return std::ranges::any_of(typed, [](char key) { return key == 'q' || key == 'Q'; }) ? Event::quit
                                                                                       : Event::none;
}

}  // namespace nemocube
