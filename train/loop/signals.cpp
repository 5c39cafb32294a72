#include "train/loop/signals.h"

#include <csignal>

namespace nemocube {
namespace {
volatile std::sig_atomic_t first_signal = 0;

void remember(int number) {
  if (first_signal == 0) {
    first_signal = number;
  } else {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}
}  // namespace

SignalWatch::SignalWatch(const std::vector<int>& signals) : signals_(signals) {
  first_signal = 0;
  for (const int number : signals_) std::signal(number, remember);
}

SignalWatch::~SignalWatch() {
  for (const int number : signals_) std::signal(number, SIG_DFL);
}

int SignalWatch::received() const { return first_signal; }

}  // namespace nemocube
