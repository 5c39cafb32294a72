#include "train/run/signals.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>

#include "core/log.h"
#include "core/quote.h"

namespace nemocube {
namespace {

/// A line that a signal handler may read at any time. Writing changes the copy that is not being read.
class HandlerText {
 public:
  void set(std::string_view text) {
    const int next = 1 - current_.load();
    Copy& copy = copies_[static_cast<std::size_t>(next)];
    copy.size = std::min(text.size(), copy.bytes.size() - 1);
    std::memcpy(copy.bytes.data(), text.data(), copy.size);
    copy.bytes[copy.size++] = '\n';
    current_ = next;
  }
  std::string_view get() const {
    const Copy& copy = copies_[static_cast<std::size_t>(current_.load())];
    return {copy.bytes.data(), copy.size};
  }

 private:
  struct Copy {
    std::array<char, 1024> bytes{};
    std::size_t size = 0;
  };
  std::array<Copy, 2> copies_;
  std::atomic<int> current_{0};
};

std::atomic<int> first_signal{0};
HandlerText first_text, second_text;
static_assert(std::atomic<int>::is_always_lock_free, "signal handlers may not lock");

void remember(int number) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, number)) {
    if (number != SIGPIPE) write_log_in_signal_handler(first_text.get());
  } else if (number != SIGHUP && number != SIGPIPE) {
    write_log_in_signal_handler(second_text.get());
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

bool ignored(int number) {
  struct sigaction now {};
  return ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

SignalWatch::SignalWatch(std::vector<int> signals, std::string_view text) : signals_(std::move(signals)) {
  for (const int number : {SIGHUP, SIGPIPE}) {
    std::erase(signals_, number);
    if (!ignored(number)) signals_.push_back(number);
  }
  first_signal = 0;
  first_text.set(printable_message(text));
  second_text.set("stopped at once");
  for (const int number : signals_) std::signal(number, remember);
}

SignalWatch::~SignalWatch() {
  for (const int number : signals_) std::signal(number, SIG_DFL);
}

int SignalWatch::received() const { return first_signal; }

void SignalWatch::set_second_text(std::string_view text) { second_text.set(printable_message(text)); }

}  // namespace nemocube
